"""One walk along the queue: each ask in its turn is placed, or told why not, or passed by who delays nobody.

The walk changes the fleet and the shares as it goes. It knows nothing of quotas and transactions: whoever commits its
decisions gives back with `undo` what could not be kept.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from apps.scheduling.core import gangs
from apps.scheduling.core.backfill import Running, Shadow, cast_shadow
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import NOTHING, Held
from apps.scheduling.core.moments import utc
from apps.scheduling.core.queue import Ask, Queue, Waiting
from apps.scheduling.core.values import Placed, Reason, Refused, Request

Answer = tuple[Placed, ...] | Refused


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of an ask: GPUs for each of its claims, in order, or why not."""

    ask: Ask
    answer: Answer


def _nothing_reserved(claim: Waiting) -> Held:
    return NOTHING


class Walk:
    """Asks of the queue, decided one by one; `shadow` is the head's, once there is a head.

    `running` are the placed claims that end by themselves. `reserved` says what a claim may not count on for reasons of
    its own; a mapping that it gave stays as it is. Where only newcomers walk, `shadow` is what an earlier walk of the
    whole queue left.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: Queue,
        *,
        running: Iterable[Running],
        now: float,
        reserved: Callable[[Waiting], Held] = _nothing_reserved,
        shadow: Shadow | None = None,
    ) -> None:
        self._fleet, self._queue, self._running, self._now = fleet, queue, running, now
        self._reserved = reserved
        self.shadow = shadow
        self._headed = shadow is not None
        # The fleet only gets fuller along the walk: what was refused once is refused again. Beside each answer stands
        # what was reserved then, which keeps its id from becoming another's.
        self._refused: dict[tuple[tuple[Request, ...], bool, int], tuple[Refused, Held]] = {}

    def __iter__(self) -> Iterator[Decision]:
        while (ask := self._queue.next()) is not None:
            yield self.decide(ask)

    def decide(self, ask: Ask) -> Decision:
        """Place the ask, or say why not; the first that has no room becomes the head."""
        answer = self._answer(ask)
        if isinstance(answer, Refused):
            if not self._headed:
                self._headed = True
                reserved = gangs.most(self._reserved(claim) for claim in ask.members)
                self.shadow = cast_shadow(self._fleet, ask, self._running, now=self._now, held=reserved)
            return Decision(ask, answer)
        gangs.take(self._fleet, ask, answer)
        self._queue.placed(ask)
        for claim, placed in zip(ask.members, answer, strict=True):
            if self.shadow is not None:
                self.shadow = self.shadow.after(placed.gpus, claim, now=self._now)
        return Decision(ask, answer)

    def undo(self, decision: Decision) -> None:
        """What was placed here could not be kept: its GPUs are free again."""
        assert not isinstance(decision.answer, Refused)
        found = {claim.id: placed for claim, placed in zip(decision.ask.members, decision.answer, strict=True)}
        gangs.give_back(self._fleet, decision.ask, found)
        self._queue.returned(decision.ask)
        self._refused.clear()

    def _answer(self, ask: Ask) -> Answer:
        helds = [self._reserved(claim) for claim in ask.members]
        # What is the same mapping for many claims says the same of each; a gang's is made for it alone.
        reserved = helds[0] if len(helds) == 1 else gangs.most(helds)
        guard = self._guard(ask)
        kind = tuple(_shape(claim.request) for claim in ask.members), bool(guard), id(reserved) if reserved else 0
        if kind in self._refused:
            return self._refused[kind][0]
        answer = gangs.place_all(self._fleet, ask, held=gangs.both(reserved, guard))
        if isinstance(answer, Refused):
            if guard:
                answer = self._explained(ask, answer, reserved)
            self._refused[kind] = answer, reserved
        return answer

    def _guard(self, ask: Ask) -> Held:
        """What the head needs, as far as any claim of the ask would be in its way."""
        if self.shadow is None or self.shadow.ask == ask:
            return NOTHING
        helds = (self.shadow.held_from(claim, now=self._now) for claim in ask.members)
        return max(helds, key=lambda held: sum(map(sum, held.values())), default=NOTHING)

    def _explained(self, ask: Ask, answer: Refused, reserved: Held) -> Refused:
        """Say so where it is only the guard that keeps it waiting."""
        assert self.shadow is not None
        return kept_for_earlier(self._fleet, ask, self.shadow, held=reserved) or answer


def kept_for_earlier(fleet: Fleet, ask: Ask, shadow: Shadow, *, held: Held = NOTHING) -> Refused | None:
    """Why the ask waits, where it would fit but for the guard; `held` is kept from it for other reasons."""
    without = gangs.place_all(fleet, ask, held=held)
    if isinstance(without, Refused):
        return None
    gpus = shadow.gpus & {gpu for placed in without for gpu in placed.gpus}
    at = utc(shadow.start)
    detail = f"Its room is kept for a claim ahead in the queue, which fits there at {at}; what ends before may pass"
    return Refused((Reason("kept-for-earlier", len(gpus), detail),))


def _shape(request: Request) -> Request:
    """The request as far as it decides whether there is room: without labels it does not matter whose it is."""
    return replace(request, key="", tenant=request.tenant if request.labels else "")
