"""The owner of a row: a tenant that the reader administers, or the platform."""

from typing import Final

from django.db.models import QuerySet

from apps.quotas.models import Role, Tenant
from apps.quotas.principals import Principal

# The owner of rows without a tenant; no slug is a hyphen.
PLATFORM: Final = "-"


def administered_tenants(principal: Principal) -> QuerySet[Tenant]:
    """Return the tenants that the caller administers."""
    mine = Tenant.objects.order_by("slug")
    return mine if principal.is_operator else mine.filter(pk__in=principal.with_role(Role.ADMIN))
