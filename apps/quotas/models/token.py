"""API tokens: `gpc_<key>.<secret>`; the key finds the row, only a keyed digest of the secret is kept."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q
from django.utils import timezone

from apps.quotas.models.row import Row
from apps.quotas.models.tenant import Membership, Role, Tenant, User

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


# Time to have it replaced before a pipeline stops.
SOON: Final = timedelta(days=7)


class TokenQuerySet(models.QuerySet["Token"]):
    """Tokens, asked with who is asking."""

    def visible_to(self, principal: "Principal") -> "TokenQuerySet":
        """All to an operator; to a tenant's admin its tenant's; to others those they made where they are members.

        A token speaks for its maker in one tenant only, so it does not see what they made in another.
        """
        if principal.is_operator:
            return self
        mine = models.Q(pk=None)
        if principal.user_id:
            mine = models.Q(user_id=principal.user_id, tenant__in=principal.roles)
        return self.filter(mine | models.Q(tenant__in=principal.with_role(Role.ADMIN)))

    def alive(self) -> "TokenQuerySet":
        """Neither revoked nor past their end."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)

    def with_makers(self) -> "TokenQuerySet":
        """With `maker_left`: who made it may not act there any more, so it is refused."""
        stays = Exists(Membership.objects.filter(user=OuterRef("user"), tenant=OuterRef("tenant")))
        left = Q(user__is_active=False) | Q(user__is_operator=False) & (Q(tenant=None) | ~stays)
        wrapped = ExpressionWrapper(Q(user__isnull=False) & left, output_field=BooleanField())
        return self.select_related("tenant", "user").annotate(maker_left=wrapped)


class Token(Row):
    """What a program shows to act: for the platform (tenant null, operators only) or inside one tenant."""

    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    name = models.CharField(max_length=200)
    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="tokens")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="tokens")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    scopes = ArrayField(models.CharField(max_length=40))
    cidrs = ArrayField(models.CharField(max_length=50), default=list)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    objects = TokenQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.name} (gpc_{self.key})"

    @property
    def has_ended(self) -> bool:
        """Revoked, or past its end."""
        return bool(self.revoked_at or (self.expires_at and self.expires_at <= timezone.now()))

    @property
    def standing(self) -> str:
        """`works`, `ends-soon`, `maker-left` (as far as `with_makers` said so), `expired` or `revoked`."""
        if self.has_ended:
            return "revoked" if self.revoked_at else "expired"
        if getattr(self, "maker_left", False):
            return "maker-left"
        return "ends-soon" if self.expires_at and self.expires_at <= timezone.now() + SOON else "works"
