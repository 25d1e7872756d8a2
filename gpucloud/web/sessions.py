"""Where sessions are kept: Django's in the database, with an end when nobody uses them and an end whatever happens.

Django's own end moves out with every write and never comes while somebody writes. Here the row's and the cookie's end
is the nearer of two: SESSION_COOKIE_AGE after the last use, and SESSION_LIFETIME_SECONDS after the sign-in. Websockets
read the same store, so both ends are theirs too.
"""

import time
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

BEGUN = "begun_at"
USED = "used_at"
# A use is written once a minute: a write at every request would tell no more.
RESOLUTION_SECONDS = 60


class SessionStore(DatabaseStore):
    """A session with two ends."""

    def _validate_session_key(self, key: str) -> bool:
        """Whether it can be one of ours; a cookie may hold anything, and NUL is nothing to ask the database for."""
        plausible = super()._validate_session_key(key)  # type: ignore[misc]
        return bool(plausible) and key.isascii() and key.isalnum()

    def load(self) -> dict[str, Any]:
        """The session's data; a use that is a minute newer than the last is noted, which moves the nearer end out."""
        data: dict[str, Any] = super().load()
        if data and time.time() - data.get(USED, 0) > RESOLUTION_SECONDS:
            data[USED] = time.time()
            self.modified = True
        return data

    def exists(self, session_key: str) -> bool:
        """Whether there is one with this key that has not ended; Django's own counts ended ones as well."""
        found: bool = self.model.objects.filter(session_key=session_key, expire_date__gt=timezone.now()).exists()
        return found

    def cycle_key(self) -> None:
        """At a sign-in: a new key, and the life begins anew."""
        self.pop(BEGUN, None)
        super().cycle_key()

    def save(self, must_create: bool = False) -> None:
        """Write it, with the moment that it began."""
        self._get_session(no_load=must_create).setdefault(BEGUN, time.time())  # type: ignore[attr-defined]
        super().save(must_create)

    def get_expiry_age(self, **kwargs: Any) -> int:
        """Seconds until the nearer end."""
        lived = int(time.time() - self.get(BEGUN, time.time()))
        return max(0, min(int(super().get_expiry_age(**kwargs)), settings.SESSION_LIFETIME_SECONDS - lived))

    def get_expiry_date(self, **kwargs: Any) -> datetime:
        """The moment of the nearer end, which the database keeps."""
        return timezone.now() + timedelta(seconds=self.get_expiry_age(**kwargs))
