"""Writing the audit log."""

from typing import Any, NamedTuple

from django.db.models import Model

from apps.quotas.models import AuditEvent, Tenant
from apps.quotas.principals import Principal


class Named(NamedTuple):
    """An object that is no row of its own, or not yet one: its type and its name."""

    type: str
    name: object


def record(
    principal: Principal,
    action: str,
    row: Model | Named,
    *,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEvent:
    """Record an action in the caller's transaction: no change without its row, no row without its change.

    `tenant` is the row's own unless given. A model's `audited` says how the log names its rows.
    """
    made = draft(principal, action, row, tenant=tenant, before=before, after=after)
    made.save(force_insert=True)
    return made


def draft(
    principal: Principal,
    action: str,
    row: Model | Named,
    *,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEvent:
    """Return the event of `record` unsaved, for a caller that saves many at once."""
    if isinstance(row, Named):
        object_type, object_id = row
    else:
        object_type, key = row.audited  # type: ignore[attr-defined]
        object_id, tenant = getattr(row, key), tenant or getattr(row, "tenant", None)
    return AuditEvent(
        actor=principal.actor,
        action=action,
        object_type=object_type,
        object_id=str(object_id),
        tenant=tenant,
        before=before,
        after=after,
        source_ip=principal.source_ip,
    )
