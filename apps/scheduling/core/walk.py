"""A walk along the queue: each ask in its order is placed, refused with reasons, or passed by asks that delay nobody.

The walk changes the fleet and the shares as it goes. It knows nothing about quotas and transactions: a caller that
commits its decisions gives back with `undo` what could not be committed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from apps.scheduling.core import gangs
from apps.scheduling.core.backfill import ExpectedRelease, HeadPlan, explain_withheld, plan_head
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.queue import Ask, Queue, QueueEntry
from apps.scheduling.core.values import NOTHING, Held, Placed, Refused, Request

Answer = tuple[Placed, ...] | Refused


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to an ask: GPUs for each of its claims, in order, or why not."""

    ask: Ask
    answer: Answer


def _nothing_reserved(claim: QueueEntry) -> Held:
    return NOTHING


class Walk:
    """Asks of the queue, decided one by one; `head_plan` is the plan of the blocked head, once there is one.

    `running` are the placed claims that end by themselves. `reserved` returns the amounts that are withheld from a
    claim for reasons of its own; a mapping that it returned must not change. If only new claims are asked, `head_plan`
    is the plan that an earlier walk of the whole queue left.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: Queue,
        *,
        running: Iterable[ExpectedRelease],
        now: float,
        reserved: Callable[[QueueEntry], Held] = _nothing_reserved,
        head_plan: HeadPlan | None = None,
    ) -> None:
        self._fleet, self._queue, self._running, self._now = fleet, queue, running, now
        self._reserved = reserved
        self.head_plan = head_plan
        self._headed = head_plan is not None
        # The fleet only gets fuller along the walk: a request that was refused is refused again. Each answer is stored
        # with what was withheld then, so that no other mapping can get the same id.
        self._refused: dict[tuple[tuple[Request, ...], bool, int], tuple[Refused, Held]] = {}

    def __iter__(self) -> Iterator[Decision]:
        while (ask := self._queue.next()) is not None:
            yield self.decide(ask)

    def decide(self, ask: Ask) -> Decision:
        """Place the ask, or return why not; the first that has no room becomes the head."""
        answer = self._answer(ask)
        if isinstance(answer, Refused):
            if not self._headed:
                self._headed = True
                reserved = gangs.most(self._reserved(claim) for claim in ask.members)
                self.head_plan = plan_head(self._fleet, ask, self._running, now=self._now, held=reserved)
            return Decision(ask, answer)
        gangs.take(self._fleet, ask, answer)
        self._queue.record_placement(ask)
        for claim, placed in zip(ask.members, answer, strict=True):
            if self.head_plan is not None:
                self.head_plan = self.head_plan.after_placement(placed.gpus, claim, now=self._now)
        return Decision(ask, answer)

    def undo(self, decision: Decision) -> None:
        """Give back the GPUs of a placement that could not be committed."""
        assert not isinstance(decision.answer, Refused)
        found = {claim.id: placed for claim, placed in zip(decision.ask.members, decision.answer, strict=True)}
        gangs.give_back(self._fleet, decision.ask, found)
        self._queue.undo_placement(decision.ask)
        self._refused.clear()

    def _answer(self, ask: Ask) -> Answer:
        helds = [self._reserved(claim) for claim in ask.members]
        # One mapping shared by many claims means the same for each; a gang's is made for it alone.
        reserved = helds[0] if len(helds) == 1 else gangs.most(helds)
        guard = self._guard(ask)
        kind = tuple(_shape(claim.request) for claim in ask.members), bool(guard), id(reserved) if reserved else 0
        if kind in self._refused:
            return self._refused[kind][0]
        answer = gangs.place_all(self._fleet, ask, held=gangs.both(reserved, guard))
        if isinstance(answer, Refused):
            if guard:
                answer = self._explain(ask, answer, reserved)
            self._refused[kind] = answer, reserved
        return answer

    def _guard(self, ask: Ask) -> Held:
        """Return the amounts that the head needs, as far as any claim of the ask would be in its way."""
        if self.head_plan is None or self.head_plan.ask == ask:
            return NOTHING
        helds = (self.head_plan.withheld_from(claim, now=self._now) for claim in ask.members)
        return max(helds, key=lambda held: sum(map(sum, held.values())), default=NOTHING)

    def _explain(self, ask: Ask, answer: Refused, reserved: Held) -> Refused:
        """Return the refusal by the guard if only the guard keeps the ask waiting."""
        assert self.head_plan is not None
        return explain_withheld(self._fleet, ask, self.head_plan, held=reserved) or answer


def _shape(request: Request) -> Request:
    """Return the request as far as it decides whether there is room: without labels the tenant does not matter."""
    return replace(request, key="", tenant=request.tenant if request.labels else "")
