"""Replays of recorded rounds: as they were decided, or as another policy would have decided."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import place_all
from apps.scheduling.core.queue import Ask, QueueEntry
from apps.scheduling.core.values import Placed, Refused, Request
from apps.scheduling.models import Round
from apps.scheduling.services.cycles.records import Step, answer_as_json, request_of
from apps.scheduling.services.cycles.replays import apply, contents_of, earlier_rounds, first_changes, fleet_before


@dataclass(frozen=True, slots=True)
class Comparison:
    """One claim of the round: the answer then, and the answer now."""

    claim: str
    then: dict[str, Any]
    now: dict[str, Any]

    @property
    def agrees(self) -> bool:
        """True if both answers are the same, to the last number."""
        return self.then == self.now


def replay(done: Round) -> list[Comparison]:
    """Decide the round's claims again, each with the fleet as the record has it."""
    return list(_decide_again(fleet_before(done), done.steps))


def replay_with(done: Round, policy: str) -> list[Comparison]:
    """Decide the round's claims by another policy, which continues from its own answers."""
    seen, mix = fleet_before(done), Counter(dict(contents_of(done.base)[2]))
    steps = [step for earlier in [*earlier_rounds(done), done] for step in earlier.steps]
    mix.update(request_of(step["learn"]) for step in steps if "learn" in step)
    for step in first_changes(done.steps):
        apply(seen, step)
    fleet = Fleet(seen.gpus(), seen.nodes(), policy=policy, mix=mix.items())
    return list(_decide_anew(fleet, [step for step in done.steps if "claim" in step]))


def _decide_again(fleet: Fleet, steps: Iterable[Step]) -> Iterator[Comparison]:
    for step in steps:
        if "claim" in step:
            yield Comparison(step["claim"], _recorded(step), answer_as_json(_answer(fleet, step)))
        apply(fleet, step)


def _answer(fleet: Fleet, step: Step) -> Placed | Refused:
    held = _withheld(step)
    if "gang" not in step:
        return fleet.place(request_of(step["request"]), held=held)
    requests = [request_of(row) for row in step["gang"]]
    group, size = step["group"], len(requests)
    members = tuple(
        QueueEntry(str(n), "", request, n, group=group, group_size=size) for n, request in enumerate(requests)
    )
    answer = place_all(fleet, Ask(members), held=held)
    return answer if isinstance(answer, Refused) else answer[0]


def _decide_anew(fleet: Fleet, steps: Iterable[Step]) -> Iterator[Comparison]:
    for step in steps:
        request: Request = request_of(step["request"])
        answer: Placed | Refused = fleet.place(request, held=_withheld(step))
        if isinstance(answer, Placed):
            fleet.take(answer.gpus, request, node=answer.node)
        yield Comparison(step["claim"], _recorded(step), answer_as_json(answer))


def _withheld(step: Step) -> dict[str, tuple[int, int]]:
    return {uuid: (core, memory_mib) for uuid, (core, memory_mib) in step.get("held", {}).items()}


def _recorded(step: Step) -> dict[str, Any]:
    return {name: step[name] for name in ("gpus", "node", "reasons") if name in step}
