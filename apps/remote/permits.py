"""The permission of tenants to have remote shares, as nodes are told."""

from apps.quotas.models import Tenant
from apps.scheduling.models import Assignment
from apps.scheduling.services.claims.lifecycle import raise_frames


def push(tenant: Tenant) -> None:
    """Push the desired state to the nodes that take clients and have claims of the tenant, after the commit."""
    rows = Assignment.objects.live().filter(claim__tenant=tenant, gpu__node__remote__isnull=False)
    raise_frames(set(rows.values_list("gpu__node", flat=True)))
