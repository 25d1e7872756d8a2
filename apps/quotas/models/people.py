"""Invitations of users, and the sessions of those who are signed in."""

import uuid
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Role, Tenant, User


class InvitationQuerySet(Owned["Invitation"]):
    """Invitations, filtered by principal."""

    least_role = "admin"

    def open(self) -> "InvitationQuerySet":
        """Return the invitations that can be accepted."""
        return self.filter(used_at=None, revoked_at=None, expires_at__gt=timezone.now())


class Invitation(Row):
    """An invitation to create an account, by a link that is shown once; only a digest of its secret is stored."""

    audited = ("invitation", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    digest = models.CharField(max_length=64, unique=True)
    # Suggested to the person, who may choose another.
    username = models.CharField(max_length=150, blank=True, default="")
    email = models.EmailField(blank=True, default="")
    # Role of the new user: in a tenant, or operator, or none at first.
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="invitations")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    operator = models.BooleanField(default=False)
    created_by = models.CharField(max_length=200)
    # Null: the system. An invitation gives no more than its inviter may still give.
    inviter = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="invitations")
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    user = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")

    objects = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            invitation_one_role=Q(operator=False) | Q(tenant=None),
            invitation_role_known=Q(role__in=Role.values),
        )

    def __str__(self) -> str:
        return self.username or self.email or str(self.uid)

    @property
    def state(self) -> str:
        """State: `open`, `used`, `revoked` or `expired`."""
        if self.used_at or self.revoked_at:
            return "used" if self.used_at else "revoked"
        return "expired" if self.expires_at <= timezone.now() else "open"


class UserSession(AbstractBaseSession):
    """A browser's session. With its user, so that a person's sessions can be listed and ended."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="sessions")

    class Meta:
        verbose_name = "session"

    @classmethod
    def get_session_store_class(cls) -> Any:
        """Return the store that reads the rows."""
        return import_module(settings.SESSION_ENGINE).SessionStore

    def __str__(self) -> str:
        return f"session of {self.user}"
