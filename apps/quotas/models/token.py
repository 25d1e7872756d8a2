"""API tokens: `gpc_<key>.<secret>`; the key finds the row, only a keyed digest of the secret is stored."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q
from django.utils import timezone

from apps.quotas.models.row import Row, checks
from apps.quotas.models.tenant import Membership, Role, Tenant, User
from gpucloud.web.natural_order import natural_key

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


# Time to replace a token before a pipeline stops.
SOON: Final = timedelta(days=7)


class TokenQuerySet(models.QuerySet["Token"]):
    """Tokens, filtered by principal."""

    def visible_to(self, principal: "Principal") -> "TokenQuerySet":
        """Return all tokens to an operator, a tenant's to its admin, to others those that they created there.

        A token acts for its creator in one tenant only, so it does not see the creator's tokens in another.
        """
        if principal.is_operator:
            return self
        mine = models.Q(pk=None)
        if principal.user_id:
            mine = models.Q(user_id=principal.user_id, tenant__in=principal.roles)
        if principal.own_rights:
            mine |= models.Q(user_id=principal.user_id, personal=True)
        return self.filter(mine | models.Q(tenant__in=principal.with_role(Role.ADMIN)))

    def alive(self) -> "TokenQuerySet":
        """Return the tokens that are neither revoked nor expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)

    def with_makers(self) -> "TokenQuerySet":
        """Annotate `maker_left`: the creator may not act there any more, so the token is refused."""
        stays = Exists(Membership.objects.filter(user=OuterRef("user"), tenant=OuterRef("tenant")))
        gone = Q(user__is_operator=False, personal=False) & (Q(tenant=None) | ~stays)
        left = Q(user__is_active=False) | gone
        wrapped = ExpressionWrapper(Q(user__isnull=False) & left, output_field=BooleanField())
        return self.select_related("tenant", "user").annotate(maker_left=wrapped)


class Token(Row):
    """A program's credential: inside one tenant, for the platform (operators only), or with its owner's own rights."""

    audited = ("token", "key")
    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    name = models.CharField(max_length=200)
    user = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="tokens")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="tokens")
    role = models.CharField(max_length=10, choices=Role, default=Role.MEMBER)
    # True: it acts with the rights that its user has at each request, within its scopes.
    personal = models.BooleanField(default=False)
    scopes = ArrayField(models.CharField(max_length=40))
    cidrs = ArrayField(models.CharField(max_length=50), default=list)
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    objects = TokenQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(natural_key("name"), "id", name="token_natural")]
        constraints = checks(token_personal_has_owner=Q(personal=False) | Q(tenant=None, user__isnull=False))

    def __str__(self) -> str:
        return f"{self.name} (gpc_{self.key})"

    @property
    def has_ended(self) -> bool:
        """True if revoked or expired."""
        return bool(self.revoked_at or (self.expires_at and self.expires_at <= timezone.now()))

    @property
    def standing(self) -> str:
        """State: `works`, `ends-soon`, `maker-left` (after `with_makers`), `expired` or `revoked`."""
        if self.has_ended:
            return "revoked" if self.revoked_at else "expired"
        if getattr(self, "maker_left", False):
            return "maker-left"
        return "ends-soon" if self.expires_at and self.expires_at <= timezone.now() + SOON else "works"
