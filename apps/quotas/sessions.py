"""Session store whose rows name their user; `SESSION_ENGINE` of the settings."""

import secrets
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest
from django.utils import timezone

from gpucloud.web import sessions

MOST_BROWSER = 300


class SessionStore(sessions.SessionStore):
    """A session that is listed among its user's sessions, and records when the user was last seen."""

    @classmethod
    def get_model_class(cls) -> Any:
        """Return the model of the rows."""
        from apps.quotas.models import UserSession  # noqa: PLC0415 - the settings name this module before apps load

        return UserSession

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        """Return the row with its user."""
        row: Any = super().create_model_instance(data)
        row.user_id = data.get(SESSION_KEY)
        return row

    def save(self, must_create: bool = False) -> None:
        """Save the session, and that its user was here."""
        super().save(must_create)
        if user := self.get(SESSION_KEY):
            from apps.quotas.models import User  # noqa: PLC0415 - as above

            User.objects.filter(pk=user).update(last_seen_at=timezone.now())


@receiver(user_logged_in)
def describe_session(sender: Any, request: HttpRequest, **_: Any) -> None:
    """Store in a new session where it was begun, and the id by which its user ends it."""
    from apps.quotas.authentication import source_of  # noqa: PLC0415 - as above
    from apps.quotas.services import accounts  # noqa: PLC0415 - as above

    request.session[accounts.SESSION_ID] = secrets.token_hex(8)
    request.session[accounts.ADDRESS] = source_of(request)
    request.session[accounts.BROWSER] = request.META.get("HTTP_USER_AGENT", "")[:MOST_BROWSER]
