"""Gangs: claims of one group, placed all or none; and the claims that may be asked by now.

Among one tenant's waiting claims with the same `group` and `group_size`, the oldest `group_size` are a gang, the next
ones another. Its claims are tried largest first. That finds nearly every way in which a gang fits, not every one:
packing differently sized claims is a hard problem, and a gang that is refused now is tried again after every change.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.moments import utc
from apps.scheduling.core.queue import Ask, QueueEntry
from apps.scheduling.core.values import NOTHING, Held, Placed, Reason, Refused


def ready(waiting: Iterable[QueueEntry], *, now: float) -> tuple[list[Ask], dict[str, Refused]]:
    """Return the asks that may be asked now, and, by claim id, why the others may not: early, or incomplete."""
    asks, early, gangs = [], {}, defaultdict(list)
    for claim in waiting:
        if claim.group is None:
            asks.append(Ask((claim,)))
        else:
            gangs[claim.tenant, claim.group, claim.group_size].append(claim)
    for (_, name, size), members in gangs.items():
        members.sort(key=lambda claim: (claim.since, claim.id))
        for first in range(0, len(members), size):
            gang = tuple(members[first : first + size])
            if len(gang) == size:
                asks.append(Ask(gang))
            else:
                why = _incomplete(name, len(gang), size)
                early.update(dict.fromkeys((claim.id for claim in gang), why))
    for ask in asks:
        begin = max((claim.start_at or now for claim in ask.members), default=now)
        if begin > now:
            early.update(dict.fromkeys((claim.id for claim in ask.members), _early(begin)))
    return [ask for ask in asks if ask.members[0].id not in early], early


def place_all(fleet: Fleet, ask: Ask, *, held: Held = NOTHING) -> tuple[Placed, ...] | Refused:
    """Return GPUs for each claim of the ask, in its order, or why not all of them fit together. Changes nothing."""
    if len(ask.members) == 1:
        answer = fleet.place(ask.members[0].request, held=held)
        return answer if isinstance(answer, Refused) else (answer,)
    found: dict[str, Placed] = {}
    try:
        for claim in placing_order(ask):
            answer = fleet.place(claim.request, held=held)
            if isinstance(answer, Refused):
                return _partly(ask, len(found), answer)
            fleet.take(answer.gpus, claim.request, node=answer.node)
            found[claim.id] = answer
    finally:
        give_back(fleet, ask, found)
    return tuple(found[claim.id] for claim in ask.members)


def both(one: Held, other: Held) -> Held:
    """Return the amounts withheld by either; on a GPU that both name, the sum."""
    if not one or not other:
        return one or other
    total = dict(one)
    for gpu, (core, memory) in other.items():
        had = total.get(gpu, (0, 0))
        total[gpu] = (had[0] + core, had[1] + memory)
    return total


def most(helds: Iterable[Held]) -> Held:
    """Return the most that is withheld by any of them, on each GPU."""
    total: dict[str, tuple[int, int]] = {}
    for held in helds:
        for gpu, (core, memory) in held.items():
            had = total.get(gpu, (0, 0))
            total[gpu] = (max(had[0], core), max(had[1], memory))
    return total


def placing_order(ask: Ask) -> list[QueueEntry]:
    """Return the claims of a gang in the order in which they are tried: largest first."""
    return sorted(ask.members, key=_largest_first)


def take(fleet: Fleet, ask: Ask, answer: tuple[Placed, ...]) -> None:
    """Take the room of every claim of the ask."""
    for claim, placed in zip(ask.members, answer, strict=True):
        fleet.take(placed.gpus, claim.request, node=placed.node)


def give_back(fleet: Fleet, ask: Ask, found: Mapping[str, Placed]) -> None:
    """Give back the room of the claims of the ask that are in `found`, by id."""
    for claim in ask.members:
        if claim.id in found:
            fleet.give_back(found[claim.id].gpus, claim.request, node=found[claim.id].node)


def _largest_first(claim: QueueEntry) -> tuple[int, int, int, int, str]:
    asked = claim.request
    return (-asked.gpu_count, -asked.core_request, -asked.memory_mib, claim.since, claim.id)


def _incomplete(name: str, arrived: int, size: int) -> Refused:
    detail = f"{arrived} of the {size} claims of group {name} have arrived; they are placed together"
    return Refused((Reason("group-incomplete", 0, detail),))


def _early(begin: float) -> Refused:
    return Refused((Reason("not-before", 0, f"Its start_at is {utc(begin)}: it is not placed before"),))


def _partly(ask: Ask, fitting: int, answer: Refused) -> Refused:
    size, name = len(ask.members), ask.members[0].group
    detail = f"{fitting} of the {size} claims of group {name} fit together now; they are placed all or none"
    return Refused((Reason("group-does-not-fit", 0, detail), *answer.reasons))
