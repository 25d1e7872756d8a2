"""The mark of assignments whose borrowed memory is in host memory, by the measurements of their agents."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from django.db import transaction

from apps.nodes.services.telemetry.storing import Measured
from apps.scheduling import events
from apps.scheduling.models import Assignment

MIB = 1 << 20
# The amount is measured each second. It is stored again once it has changed by this part.
WORTH_STORING = 1 / 8


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
    known = Assignment.objects.filter(uid__in=found).live().values_list("pk", "uid", "memory_out_mib")
    changed = {pk: found[str(uid)] for pk, uid, mib in known if _differs(mib or 0, found[str(uid)].mib)}
    return _store(changed) if changed else 0


def _differs(before: int, now: int) -> bool:
    return (now > 0) != (before > 0) or abs(now - before) > WORTH_STORING * before


@transaction.atomic
def _store(changed: dict[int, _Out]) -> int:
    """Store the amounts by assignment; a row that others have locked is left for the next second's frame."""
    rows = Assignment.objects.filter(pk__in=changed).select_related("claim").order_by("pk")
    free = list(rows.select_for_update(skip_locked=True, no_key=True, of=("self",)))
    noted = []
    for row in free:
        was_out, out = row.memory_out_since is not None, changed[row.pk]
        row.memory_out_mib = out.mib or None
        row.memory_out_since = (row.memory_out_since or datetime.fromtimestamp(out.at, tz=UTC)) if out.mib else None
        if was_out != (out.mib > 0):
            noted.append(row.claim)
    Assignment.objects.bulk_update(free, ["memory_out_mib", "memory_out_since"])
    events.claims_changed_on_commit(noted)
    return len(free)
