"""The condition of a claim that gets less compute than it is guaranteed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from django.utils import timezone

from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.accounting import utilization

# Turns are exact over some seconds; a shorter look would call their order a miss.
OVER: Final = timedelta(seconds=30)
# Fewer seconds than this of samples say nothing: a program that has just begun.
LEAST: Final = timedelta(seconds=20)
STEP_SECONDS: Final = 1
# Percent of the GPU within which a share counts as given: the precision that docs/shim.md promises.
MARGIN: Final = 5
# Percent of the time that a program was held back: below it, it wanted no more than it got.
WANTED: Final = 10


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
