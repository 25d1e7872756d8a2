"""Backfill: who comes later may go first where it delays nobody.

The first claim that the fleet refuses is the *head*. From the time limits of what runs follows when it will fit, and
where: its *shadow*. A later claim that ends before the shadow begins may use everything. One that does not, or does not
say when it ends, may not count on what the head needs there: on each GPU of the shadow so much is kept from it as will
not be given back by then. (EASY backfilling, Lifka 1995, on parts of GPUs.)

Where nothing that runs says when it ends there is no shadow, and nothing is kept: nobody can say what would be in the
head's way. A shadow stays true from round to round until its GPUs change otherwise than by the claims placed since:
what is given back early only lets the head start earlier, and the head is asked before those who wait for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import NOTHING, Held, place_all
from apps.scheduling.core.queue import Ask, Waiting
from apps.scheduling.core.values import Refused, Request

# Releases that are looked at, soonest first. A head that fits after none of them has no shadow; looking further would
# cost a round on forty thousand GPUs more than its placements do.
MOST_RELEASES = 2000
EVERYTHING = (100, 1 << 40)


@dataclass(frozen=True, slots=True)
class Running:
    """A placed claim that ends by itself: when (Unix seconds), and what it gives back."""

    ends_at: float
    id: str
    gpus: tuple[str, ...]
    request: Request
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Shadow:
    """When and where the head will fit. `kept`: core and memory by GPU that must stay free now for that."""

    ask: Ask
    start: float
    gpus: frozenset[str]
    kept: Mapping[str, tuple[int, int]]

    def held_from(self, claim: Waiting, *, now: float) -> Held:
        """What a later claim that would start now may not count on."""
        limit = claim.time_limit_seconds
        if limit is not None and now + limit <= self.start:
            return {}
        if labelled(claim.request) or any(labelled(member.request) for member in self.ask.members):
            # A label may shut the head out whatever room there is.
            return dict.fromkeys(self.gpus, EVERYTHING)
        return self.kept

    def after(self, gpus: Iterable[str], claim: Waiting, *, now: float) -> "Shadow":
        """As it is once a later claim has these GPUs: what is back in time need not be kept twice."""
        touched = self.kept.keys() & set(gpus)
        if not touched or self.held_from(claim, now=now):
            return self
        asked = claim.request
        less = {
            gpu: (max(0, core - asked.core_request), max(0, memory - asked.memory_mib))
            for gpu, (core, memory) in self.kept.items()
            if gpu in touched
        }
        return replace(self, kept={**self.kept, **less})


def cast_shadow(
    fleet: Fleet, ask: Ask, running: Iterable[Running], *, now: float, held: Held = NOTHING
) -> Shadow | None:
    """The ask's shadow; None where no release that is known lets it fit. Leaves the fleet as it was.

    `held` is what the ask may not count on in any case.
    """
    ends = sorted(running, key=lambda item: (item.ends_at, item.id))[:MOST_RELEASES]
    given = 0

    def give_back_first(count: int) -> None:
        nonlocal given
        fleet.give_back_many((item.gpus, item.request) for item in ends[given:count])
        for item in ends[count:given]:
            fleet.take(item.gpus, item.request)
        given = count

    def fits_after(count: int) -> bool:
        give_back_first(count)
        return not isinstance(place_all(fleet, ask, held=held), Refused)

    try:
        if not ends or not fits_after(len(ends)):
            return None
        # More room never makes it fit less, so the earliest release is found by halving.
        low, high = 0, len(ends)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits_after(middle) else (middle, high)
        give_back_first(high)
        return _shadow(fleet, ask, ends[:high], now, held)
    finally:
        give_back_first(0)


def _shadow(fleet: Fleet, ask: Ask, released: Sequence[Running], now: float, held: Held) -> Shadow:
    answer = place_all(fleet, ask, held=held)
    assert not isinstance(answer, Refused)
    needed: dict[str, tuple[int, int]] = {}
    for member, placed in zip(ask.members, answer, strict=True):
        for gpu in placed.gpus:
            needed[gpu] = _sum(needed.get(gpu, (0, 0)), member.request, 1)
    for item in released:
        for gpu in item.gpus:
            if gpu in needed:
                needed[gpu] = _sum(needed[gpu], item.request, -1)
    kept = {gpu: (max(0, core), max(0, memory)) for gpu, (core, memory) in needed.items()}
    return Shadow(ask, max(now, released[-1].ends_at), frozenset(needed), kept)


def _sum(amounts: tuple[int, int], request: Request, sign: int) -> tuple[int, int]:
    return amounts[0] + sign * request.core_request, amounts[1] + sign * request.memory_mib


def labelled(request: Request) -> bool:
    """Whether more than room decides where it goes."""
    return bool(request.affinity or request.anti_affinity or request.exclusion or request.cpu_milli or request.ram_mib)
