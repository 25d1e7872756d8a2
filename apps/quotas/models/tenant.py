"""Tenants and their members."""

from typing import TYPE_CHECKING

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.row import Owned, Row, checks
from gpucloud.web.natural_order import natural_name

if TYPE_CHECKING:
    from apps.quotas.principals import Principal

SLUG = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class User(AbstractUser):
    """A person. Operators run the platform; everyone else acts through memberships."""

    audited = ("person", "username")
    is_operator = models.BooleanField(default=False, help_text="May do everything, in every tenant.")
    # Written at most once a minute, by sessions and tokens.
    last_seen_at = models.DateTimeField(null=True, blank=True)
    # A name of the IANA database; empty: the server's zone.
    time_zone = models.CharField(max_length=63, blank=True, default="")

    @classmethod
    def visible_to(cls, principal: "Principal") -> "models.QuerySet[User]":
        """Return all users to an operator; to others themselves, and the members of tenants that they administer.

        A token of one tenant does not act for its creator elsewhere: it shows the tenant's members only.
        """
        if principal.is_operator:
            return cls.objects.all()
        theirs = models.Q(memberships__tenant__in=principal.with_role("admin"))
        mine = models.Q(pk=principal.user_id if principal.own_rights else None)
        return cls.objects.filter(pk__in=cls.objects.filter(theirs | mine).values("pk"))


class TenantQuerySet(Owned["Tenant"]):
    """Tenants, filtered by principal."""

    owner = "pk"


class Tenant(Row):
    """The unit that is charged; owns quotas, members and tokens."""

    audited = ("tenant", "slug")
    slug = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    name = models.CharField(max_length=200)
    weight = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1), MaxValueValidator(1000)])
    cohort = models.CharField(max_length=63, null=True, blank=True, validators=[RegexValidator(SLUG)])
    # Its charges count at this organisation and at all above it.
    organisation = models.ForeignKey(
        "quotas.Organisation", on_delete=models.PROTECT, null=True, blank=True, related_name="tenants"
    )
    # Its programs on other machines may use its claims, in pools that allow it.
    remote = models.BooleanField(default=False, db_default=False)
    natural_name = natural_name("slug")
    members = models.ManyToManyField(User, through="Membership", related_name="tenants")

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering = ["slug"]
        constraints = checks(tenant_weight_positive=models.Q(weight__gte=1))

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    """Role of a member in its tenant; each role includes the ones after it."""

    ADMIN = "admin", _("Admin")
    MEMBER = "member", _("Member")
    VIEWER = "viewer", _("Viewer")


class Membership(models.Model):
    """A person's role in a tenant."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once"),
            *checks(membership_role_known=models.Q(role__in=Role.values)),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.tenant}"
