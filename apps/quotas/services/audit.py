"""Writing the audit log."""

from typing import Any

from apps.quotas.models import AuditEvent, Tenant
from apps.quotas.principals import Principal


def record(
    *,
    principal: Principal,
    action: str,
    object_type: str,
    object_id: object,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEvent:
    """Record an action in the caller's transaction: no change without its row, no row without its change."""
    return AuditEvent.objects.create(
        actor=principal.actor,
        action=action,
        object_type=object_type,
        object_id=str(object_id),
        tenant=tenant,
        before=before,
        after=after,
        source_ip=principal.source_ip,
    )
