"""Session store: Django's in the database, with an idle timeout and an absolute lifetime.

Django's own expiry moves with every write, so an active session never ends. Here the row and the cookie expire at the
earlier of two times: SESSION_COOKIE_AGE after the last use, and SESSION_LIFETIME_SECONDS after the sign-in. Websockets
read the same store, so both apply to them too.
"""

import time
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.utils import timezone

BEGUN = "begun_at"
USED = "used_at"
# A use is recorded at most once a minute: a write per request would add nothing.
RESOLUTION_SECONDS = 60


class SessionStore(DatabaseStore):
    """A session with an idle timeout and an absolute lifetime."""

    def _validate_session_key(self, key: str) -> bool:
        """Return True if the key can be one of ours; a cookie may contain anything, and the database rejects NUL."""
        plausible = super()._validate_session_key(key)  # type: ignore[misc]
        return bool(plausible) and key.isascii() and key.isalnum()

    def load(self) -> dict[str, Any]:
        """Load the session's data; record a use a minute or more after the last one, which moves the idle timeout."""
        data: dict[str, Any] = super().load()
        if data and time.time() - data.get(USED, 0) > RESOLUTION_SECONDS:
            data[USED] = time.time()
            self.modified = True
        return data

    def exists(self, session_key: str) -> bool:
        """Return True if an unexpired session has this key; Django's own method counts expired ones too."""
        found: bool = self.model.objects.filter(session_key=session_key, expire_date__gt=timezone.now()).exists()
        return found

    def cycle_key(self) -> None:
        """Start the lifetime again with a new key, at sign-in."""
        self.pop(BEGUN, None)
        super().cycle_key()

    def save(self, must_create: bool = False) -> None:
        """Save the session with its start time."""
        self._get_session(no_load=must_create).setdefault(BEGUN, time.time())  # type: ignore[attr-defined]
        super().save(must_create)

    def get_expiry_age(self, **kwargs: Any) -> int:
        """Return the seconds until the session expires."""
        lived = int(time.time() - self.get(BEGUN, time.time()))
        return max(0, min(int(super().get_expiry_age(**kwargs)), settings.SESSION_LIFETIME_SECONDS - lived))

    def get_expiry_date(self, **kwargs: Any) -> datetime:
        """Return the time at which the session expires, which the database stores."""
        return timezone.now() + timedelta(seconds=self.get_expiry_age(**kwargs))
