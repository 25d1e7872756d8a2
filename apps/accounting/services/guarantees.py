"""The condition of a claim that gets less compute than it is guaranteed.

A page measures one claim from its last seconds. `watch` measures all of them from roll-ups, and stores the condition
for the API, attention and webhooks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import connection, transaction
from django.utils import timezone

from apps.accounting.services import utilization
from apps.nodes.services.telemetry.levels import TENS, floor
from apps.nodes.services.telemetry.reading import rolled_until
from apps.quotas.models import EventKind
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.failures import each

# Turns are exact over some seconds; a shorter look would call their order a miss.
OVER: Final = timedelta(seconds=30)
# Fewer seconds than this of samples say nothing: a program that has just begun.
LEAST: Final = timedelta(seconds=20)
STEP_SECONDS: Final = 1
# Percent of the GPU within which a share counts as given: the precision that docs/shim.md promises.
MARGIN: Final = 5
# Percent of the time that a program was held back: below it, it wanted no more than it got.
WANTED: Final = 10
# A condition that is stored and announced holds for a whole minute; roll-ups that end earlier than this say nothing.
MINUTE: Final = timedelta(minutes=1)
OUTDATED: Final = timedelta(minutes=2)
MISSED = f"""
SELECT assignment.claim_id, node.name, gpu.index, sum(tens.core * tens.samples) / sum(tens.samples) AS used,
    assignment.core_request, sum(coalesce(tens.throttled, 0) * tens.samples) / sum(tens.samples) AS throttled
FROM nodes_usagetens AS tens
JOIN scheduling_assignment AS assignment ON assignment.uid = tens.uid
JOIN scheduling_claim AS claim ON claim.id = assignment.claim_id
JOIN nodes_gpu AS gpu ON gpu.id = assignment.gpu_id
JOIN nodes_node AS node ON node.id = gpu.node_id
WHERE tens.at >= %(begin)s AND tens.at < %(end)s AND assignment.in_force_at <= %(begin)s
    AND assignment.state IN ('in_force', 'over_limit') AND claim.state = 'active'
    AND NOT claim.best_effort AND claim.borrowed_core = 0
GROUP BY assignment.id, gpu.id, node.id
HAVING sum(tens.samples) >= %(least)s
    AND sum(tens.core * tens.samples) / sum(tens.samples) < assignment.core_request - {MARGIN}
    AND sum(coalesce(tens.throttled, 0) * tens.samples) / sum(tens.samples) >= {WANTED}
ORDER BY assignment.claim_id, node.name, gpu.index
"""  # noqa: S608 - all names are ours


@dataclass(frozen=True, slots=True)
class Missed:
    """A missed guarantee on one GPU: means in percent over the last seconds."""

    place: str
    used: float
    guaranteed: int
    throttled: float
    seconds: int = int(OVER.total_seconds())


def find_missed(claim: Claim, live: list[Assignment]) -> list[Missed]:
    """Return the GPUs on which the claim got less core than its request although its programs wanted more.

    A best-effort claim and one on borrowed core have no guarantee.
    """
    if claim.state != ClaimState.ACTIVE or claim.best_effort or claim.borrowed_core or not live:
        return []
    begin = timezone.now() - OVER
    rows = utilization.of_assignments(live, start=begin, end=None, step_seconds=STEP_SECONDS)
    found = (_missed(item, row["core_percent"], row["throttled_percent"]) for item, row in zip(live, rows, strict=True))
    return [missed for missed in found if missed is not None]


def _missed(item: Assignment, core: list[float], throttled: list[float | None]) -> Missed | None:
    if len(core) * STEP_SECONDS < LEAST.total_seconds():
        return None
    used, held_back = sum(core) / len(core), sum(value or 0 for value in throttled) / len(throttled)
    if used >= item.core_request - MARGIN or held_back < WANTED:
        return None
    return Missed(f"{item.gpu.node.name} GPU {item.gpu.index}", used, item.core_request, held_back)


def watch() -> int:
    """Store and announce which claims miss their guarantee; return the number of claims changed."""
    now = timezone.now()
    end = floor(rolled_until(), TENS.span)
    if end < now - OUTDATED:
        return 0
    found = _find_all(end - MINUTE, end)
    known = Claim.objects.filter(below_guarantee_since__isnull=False).values_list("pk", flat=True)
    return each(sorted({*known, *found}), lambda key: _store(key, found.get(key, []), since=end - MINUTE))


def _find_all(begin: datetime, end: datetime) -> dict[int, list[Missed]]:
    """Return the missed guarantees of all claims in the window; one query."""
    length = int((end - begin).total_seconds())
    with connection.cursor() as cursor:
        cursor.execute(MISSED, {"begin": begin, "end": end, "least": length * 2 // 3})
        rows = cursor.fetchall()
    found: dict[int, list[Missed]] = {}
    for claim, node, index, used, guaranteed, throttled in rows:
        missed = Missed(f"{node} GPU {index}", used, guaranteed, throttled, length)
        found.setdefault(claim, []).append(missed)
    return found


@transaction.atomic
def _store(key: int, missed: list[Missed], *, since: datetime) -> bool:
    claim = locked(Claim(pk=key))
    missing = bool(missed) and claim.state == ClaimState.ACTIVE
    if missing == (claim.below_guarantee_since is not None):
        return False
    if missing:
        detail = _describe(missed)
        states.tell_of(claim, EventKind.CLAIM_BELOW_GUARANTEE, why=detail, since=since)
        states.move(claim, claim.state, below_guarantee_since=since, below_guarantee=detail)
    else:
        states.tell_of(claim, EventKind.CLAIM_GUARANTEE_MET)
        states.move(claim, claim.state, **states.GUARANTEED)
    return True


def _describe(missed: Iterable[Missed]) -> str:
    """Return the measurements in words, at most as long as the column."""
    parts = (
        f"{one.place}: {one.used:.0f} % of the guaranteed {one.guaranteed} % over {one.seconds} s, throttled "
        f"{one.throttled:.0f} % of the time"
        for one in missed
    )
    return ("; ".join(parts))[:499] + "."
