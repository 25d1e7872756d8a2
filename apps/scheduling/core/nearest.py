"""The nearest changes to a request with which it would be placed now.

Each answer changes one field and is the largest value that fits, found by asking the fleet: by bisection over the free
memory of GPUs, over percents, over counts. A question costs some forty placements and no more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import NOTHING, Held, Placed, Request

LABELS = ("affinity", "anti_affinity", "exclusion")
WITHOUT = {
    "gpu_model": "Accept any GPU model to start now",
    "node_selector": "Remove the node selector to start now",
    "affinity": "Remove the affinity label to start now",
    "anti_affinity": "Remove the anti-affinity label to start now",
    "exclusion": "Remove the exclusion label to start now",
}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Another value of one field, with which the claim would fit now."""

    field: str
    value: Any
    detail: str


@dataclass(frozen=True, slots=True)
class QuotaBounds:
    """Bounds by quotas beside those by GPUs: True for requests that they allow, and the most memory of each GPU."""

    allow: Callable[[Request], bool]
    memory_mib: int | None = None


NO_BOUNDS = QuotaBounds(lambda _: True)


def nearest_changes(
    fleet: Fleet, request: Request, *, held: Held = NOTHING, quota: QuotaBounds = NO_BOUNDS
) -> tuple[Suggestion, ...]:
    """Return for each field the nearest value that fits, if there is one; nothing if the request fits as it is.

    What `quota` does not allow does not fit; it allows less of whatever it allows.
    """

    def fits(**changed: Any) -> bool:
        wanted = replace(request, **changed)
        return quota.allow(wanted) and isinstance(fleet.place(wanted, held=held), Placed)

    if fits():
        return ()
    found: list[Suggestion] = []
    if (
        memory := _most(_memories(fleet, request, held, quota.memory_mib), lambda amount: fits(memory_mib=amount))
    ) is not None:
        found.append(Suggestion("memory_mib", memory, f"Reduce memory to {memory} MiB to start now"))
    if (core := _most(range(1, request.core_request), lambda percent: fits(core_request=percent))) is not None:
        found.append(Suggestion("core_request", core, f"Reduce core request to {core} % to start now"))
    if (count := _most(range(1, request.gpu_count), lambda gpus: fits(gpu_count=gpus))) is not None:
        found.append(Suggestion("gpu_count", count, f"Reduce the number of GPUs to {count} to start now"))
    for field, empty in (("gpu_model", None), ("node_selector", ()), *((label, None) for label in LABELS)):
        if getattr(request, field, empty) != empty and fits(**{field: empty}):
            found.append(Suggestion(field, None, WITHOUT[field]))
    return tuple(found)


def _memories(fleet: Fleet, request: Request, held: Held, bound: int | None) -> Sequence[int]:
    """Return the amounts at which the answer may change, smallest first: free memory of GPUs below the request."""
    free = {gpu.memory_free_mib - held.get(gpu.uuid, (0, 0))[1] for gpu in fleet.gpus() if gpu.schedulable}
    if bound is not None:
        free.add(bound)
    return sorted(amount for amount in free if 0 < amount < request.memory_mib)


def _most(values: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of ascending values that fits; every value below one that fits, fits."""
    if not values or not fits(values[0]):
        return None
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(values[middle]) else (low, middle)
    return values[low]
