"""The mark of assignments whose borrowed memory is in host memory, by the measurements of their agents."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from django.db import transaction

from apps.nodes.services.telemetry.storing import Measured
from apps.scheduling import events
from apps.scheduling.models import Assignment

MIB = 1 << 20
# The amount is measured each second. It is stored again once it has changed by this part.
WORTH_STORING = 1 / 8
BACK: dict[str, Any] = {"memory_out_mib": None, "memory_out_since": None}


class _Out(NamedTuple):
    mib: int
    at: float


def mark(batch: Sequence[Measured]) -> int:
    """Mark the assignments of the batch whose memory is out, and unmark those whose is back; return their number.

    Frames without borrowed memory cost nothing. Watchers of the claims are notified of marks, not of amounts.
    """
    found: dict[str, _Out] = {}
    for source, usage in batch:
        for item in usage.assignments:
            # A node is believed about assignments that it carries only.
            if item.borrowed is not msgspec.UNSET and item.uid in (source.carried or {}):
                found[item.uid] = _Out(item.borrowed.out_bytes // MIB, usage.at)
    if not found:
        return 0
    columns = ("pk", "uid", "memory_out_mib", "memory_out_since")
    known = Assignment.objects.filter(uid__in=found).live().values_list(*columns, named=True)
    changed = [row for row in known.order_by("pk") if _differs(row.memory_out_mib or 0, found[str(row.uid)].mib)]
    for row in changed:
        _store(row.pk, row.memory_out_since, found[str(row.uid)])
    return len(changed)


def _differs(before: int, now: int) -> bool:
    return (now > 0) != (before > 0) or abs(now - before) > WORTH_STORING * before


# One row at a time: the locks of the scheduler's transactions are waited for, and none is held meanwhile.
@transaction.atomic
def _store(pk: int, since: datetime | None, out: _Out) -> None:
    begun = since or datetime.fromtimestamp(out.at, tz=UTC)
    values = {"memory_out_mib": out.mib, "memory_out_since": begun} if out.mib else BACK
    row = Assignment.objects.filter(pk=pk)
    row.update(**values)
    if (since is None) != (out.mib == 0):
        events.claim_changed_on_commit(row.select_related("claim").get().claim)
