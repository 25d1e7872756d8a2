"""Rate limit of the audit rows that agents cause; the audit log is never pruned.

An agent reports events and conditions in its own words, as often as it likes. PostgreSQL keeps the count per node, so
reconnecting or reaching another server process does not reset it.
"""

from datetime import timedelta
from typing import Any

from django.db import transaction

from apps.nodes.models import Node
from apps.quotas.models import Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import attempts, audit
from apps.quotas.services.attempts import Limit, TooManyAttempts

WINDOW = timedelta(minutes=10)
# A node of 8 GPUs that loses its driver changes some 40 conditions at once; the auditor names a process once an hour.
EVENTS = Limit("agent events", 100, WINDOW)
CONDITIONS = Limit("agent conditions", 100, WINDOW)
SUPPRESSED = "agent.rows-suppressed"


@transaction.atomic
def record(*, node: Node, limit: Limit, action: str, after: dict[str, Any], tenant: Tenant | None = None) -> bool:
    """Write an audit row for the node's agent; return False where its rows of this window are used up.

    The last row of a window says that what follows in it is not recorded.
    """
    try:
        left = attempts.take(limit, str(node.pk))
    except TooManyAttempts:
        return False
    if left == 0:
        minutes = int(limit.window.total_seconds()) // 60
        detail = f"More than {limit.most} {limit.name} within {minutes} minutes: the rest of them is not recorded."
        action, after, tenant = SUPPRESSED, {"detail": detail, "first": action}, None
    audit.record(Principal(name=f"agent:{node.name}"), action[:60], node, tenant=tenant, after=after)
    return left > 0
