"""EASY backfilling (Lifka 1995) on parts of GPUs: a later claim may start first if it does not delay the blocked head.

The first ask that the fleet refuses is the blocked head. The time limits of running claims say when and where it will
fit: its `HeadPlan`. A later claim that ends before the plan's start may use everything. A claim that ends later, or has
no time limit, may not use what the head needs: on each GPU of the plan, the amount that will not be released in time is
withheld from it.

If no running claim has a time limit there is no plan and nothing is withheld, as nobody can say what would delay the
head. A plan stays valid from round to round until its GPUs change in another way than by the claims placed since: an
early release only lets the head start earlier, and the head is asked before the claims behind it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import place_all
from apps.scheduling.core.moments import utc
from apps.scheduling.core.queue import Ask, QueueEntry
from apps.scheduling.core.values import NOTHING, GpuState, Held, Placed, Reason, Refused, Request

# The releases examined, soonest first. A head that fits after none of them has no plan; examining more would cost a
# round on forty thousand GPUs more than its placements do.
MOST_RELEASES = 2000
EVERYTHING = (100, 1 << 40)


class Unanswerable(Exception):
    """An error raised while these claims were decided; `__cause__` is the error. The fleet may be left half changed."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(", ".join(claim.id for claim in ask.members))
        self.ask = ask


@dataclass(frozen=True, slots=True)
class ExpectedRelease:
    """The release of a placed claim that ends by itself: its end (Unix seconds), GPUs and amounts."""

    ends_at: float
    id: str
    gpus: tuple[str, ...]
    request: Request
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """The time and GPUs at which the head will fit. `withheld`: core and memory by GPU that must stay free until then.

    `start` is in Unix seconds.
    """

    ask: Ask
    start: float
    gpus: frozenset[str]
    withheld: Mapping[str, tuple[int, int]]

    def withheld_from(self, claim: QueueEntry, *, now: float) -> Held:
        """Return the amounts by GPU that a later claim may not use if it starts now."""
        limit = claim.time_limit_seconds
        if limit is not None and now + limit <= self.start:
            return {}
        if labelled(claim.request) or any(labelled(member.request) for member in self.ask.members):
            # A label may shut the head out however much room there is.
            return dict.fromkeys(self.gpus, EVERYTHING)
        return self.withheld

    def after_placement(self, gpus: Iterable[str], claim: QueueEntry, *, now: float) -> "HeadPlan":
        """Return the plan after a later claim was placed on these GPUs: what it releases in time is withheld once."""
        touched = self.withheld.keys() & set(gpus)
        if not touched or self.withheld_from(claim, now=now):
            return self
        asked = claim.request
        less = {
            gpu: (max(0, core - asked.core_request), max(0, memory - asked.memory_mib))
            for gpu, (core, memory) in self.withheld.items()
            if gpu in touched
        }
        return replace(self, withheld={**self.withheld, **less})


class BlockedHead:
    """The blocked head of one pool's queue from round to round, and its plan.

    An ask that is head stays head until it is placed, leaves, or a more urgent ask is refused: what was withheld for it
    is not given away because shares have moved. Its plan is made anew if the head changes, or if a GPU of the plan
    changes in another way than by a placement recorded here.

    `ending` returns the claims on these GPUs that end by themselves; it is called only when a plan is made.
    """

    def __init__(self, ending: Callable[[Collection[str], float], Iterable[ExpectedRelease]]) -> None:
        self._ending = ending
        self.head: Ask | None = None
        self.plan: HeadPlan | None = None
        self._stale = False
        # Keys of the claims, by their requests, that wait only because their room is withheld for the head.
        self._held_back: dict[tuple[Request, ...], set[int]] = {}

    def refresh(self, fleet: Fleet, gpus: Collection[str], reserved: Callable[[Ask], Held], *, now: float) -> None:
        """Make the plan anew if it is stale; `reserved` returns the amounts that the head may not use.

        Raises Unanswerable.
        """
        if self.head is None or not self._stale:
            return
        self._stale = False
        self._held_back.clear()
        running = self._ending(gpus, now)
        try:
            self.plan = plan_head(fleet, self.head, running, now=now, held=reserved(self.head))
        except Exception as error:
            raise Unanswerable(self.head) from error

    def withheld_from(self, ask: Ask, *, now: float) -> Held:
        """Return the amounts by GPU that this ask may not use; nothing for the head and for more urgent asks."""
        plan, head = self.plan, self.head
        if plan is None or head is None or ask == head or ask.priority > head.priority:
            return NOTHING
        helds = [plan.withheld_from(claim, now=now) for claim in ask.members]
        return max(helds, key=lambda held: sum(map(sum, held.values())))

    def record_refusal(self, ask: Ask) -> None:
        """Record that this ask cannot start; it becomes the head if there is none, or if it outranks the head."""
        if self.head is None or ask.priority > self.head.priority:
            self.head, self.plan, self._stale = ask, None, True

    def explain_refusal(self, fleet: Fleet, ask: Ask, *, held: Held) -> Refused | None:
        """Return the refusal if the ask waits only for what is withheld for the head; `held` is withheld anyway."""
        return None if self.plan is None else explain_withheld(fleet, ask, self.plan, held=held)

    def hold_back(self, ask: Ask) -> None:
        """Record that this ask waits only for withheld room, until the plan or a GPU that could carry it changes."""
        requests = tuple(claim.request for claim in ask.members)
        self._held_back.setdefault(requests, set()).update(claim.since for claim in ask.members)

    def held_back_keys(self) -> set[int]:
        """Return the keys of the claims that are held back."""
        return set().union(*self._held_back.values())

    def record_placement(self, ask: Ask, answer: tuple[Placed, ...], *, now: float) -> None:
        """Record that this ask was placed, by right or by backfilling."""
        if self.plan is None:
            # One more running claim may end by itself.
            self._stale |= ask.time_limit_seconds is not None
            return
        if self.head is not None and ask.priority > self.head.priority:
            self._stale |= any(self.plan.gpus & set(placed.gpus) for placed in answer)
            return
        for claim, placed in zip(ask.members, answer, strict=True):
            self.plan = self.plan.after_placement(placed.gpus, claim, now=now)

    def record_change(self, gpu: GpuState) -> None:
        """Record that this GPU changed in another way than by a placement recorded here."""
        self._stale |= self.plan is not None and gpu.uuid in self.plan.gpus
        for kind in [kind for kind in self._held_back if any(gpu.could_help(request) for request in kind)]:
            del self._held_back[kind]

    def invalidate(self) -> None:
        """Have the next round make the plan anew."""
        self._stale = True

    def remove_claim(self, key: int, uid: str, *, requeued: bool = False) -> None:
        """Record that the claim left the queue; `requeued`: it comes back at once, so a head stays the head."""
        for keys in self._held_back.values():
            keys.discard(key)
        if requeued:
            return
        if self.head is not None and any(claim.id == uid for claim in self.head.members):
            self.clear()

    def clear(self) -> None:
        """Remove the head and its plan."""
        self.head = self.plan = None
        self._held_back.clear()


def plan_head(
    fleet: Fleet, ask: Ask, running: Iterable[ExpectedRelease], *, now: float, held: Held = NOTHING
) -> HeadPlan | None:
    """Return the ask's plan, or None if it fits after no known release. The fleet is left as it was.

    `held` is withheld from the ask in any case.
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
        # More room never makes an ask fit less, so the earliest release is found by bisection.
        low, high = 0, len(ends)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits_after(middle) else (middle, high)
        give_back_first(high)
        return _plan(fleet, ask, ends[:high], now, held)
    finally:
        give_back_first(0)


def _plan(fleet: Fleet, ask: Ask, released: Sequence[ExpectedRelease], now: float, held: Held) -> HeadPlan:
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
    withheld = {gpu: (max(0, core), max(0, memory)) for gpu, (core, memory) in needed.items()}
    return HeadPlan(ask, max(now, released[-1].ends_at), frozenset(needed), withheld)


def _sum(amounts: tuple[int, int], request: Request, sign: int) -> tuple[int, int]:
    return amounts[0] + sign * request.core_request, amounts[1] + sign * request.memory_mib


def explain_withheld(fleet: Fleet, ask: Ask, plan: HeadPlan, *, held: Held = NOTHING) -> Refused | None:
    """Return a `kept-for-earlier` refusal if the ask would fit but for the plan; `held` is withheld anyway."""
    without = place_all(fleet, ask, held=held)
    if isinstance(without, Refused):
        return None
    gpus = plan.gpus & {gpu for placed in without for gpu in placed.gpus}
    at = utc(plan.start)
    detail = (
        f"Reserved for a claim ahead in the queue, which starts at {at}; only claims that end before then may start"
    )
    return Refused((Reason("kept-for-earlier", len(gpus), detail),))


def labelled(request: Request) -> bool:
    """Return True if more than free GPU room decides where the request fits: labels, CPU or RAM."""
    return bool(request.affinity or request.anti_affinity or request.exclusion or request.cpu_milli or request.ram_mib)
