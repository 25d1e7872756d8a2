"""API tokens: `gpc_<key>.<secret>`; the key finds the row, only a keyed digest of the secret is kept."""

from typing import TYPE_CHECKING

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.quotas.models.row import Row
from apps.quotas.models.tenant import Role, Tenant, User

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


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
