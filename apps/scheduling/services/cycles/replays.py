"""Replays of recorded rounds: as they were decided, or as another policy would have decided."""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import place_all
from apps.scheduling.core.queue import Ask, QueueEntry
from apps.scheduling.core.values import GpuState, Placed, Refused, Request
from apps.scheduling.models import FleetSnapshot, Round
from apps.scheduling.services.cycles.records import Mix, Step, answer_as_json, gpu_of, node_of, request_of


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
    seen, mix = fleet_before(done), Counter(dict(_contents(done.base)[2]))
    steps = [step for earlier in [*_before(done), done] for step in earlier.steps]
    mix.update(request_of(step["learn"]) for step in steps if "learn" in step)
    for step in _first_changes(done.steps):
        apply(seen, step)
    fleet = Fleet(seen.gpus(), seen.nodes(), policy=policy, mix=mix.items())
    return list(_decide_anew(fleet, [step for step in done.steps if "claim" in step]))


def gpus_seen(done: Round) -> list[GpuState]:
    """Return the GPUs as the round found them."""
    fleet = fleet_before(done)
    for step in _first_changes(done.steps):
        apply(fleet, step)
    return list(fleet.gpus())


def fleet_before(done: Round) -> Fleet:
    """Return the fleet as the round before left it."""
    gpus, nodes, mix = _contents(done.base)
    fleet = Fleet(gpus, nodes, policy=done.base.policy, mix=mix)
    for earlier in _before(done):
        for step in earlier.steps:
            apply(fleet, step)
    return fleet


def apply(fleet: Fleet, step: Step) -> None:
    """Apply a recorded step to the fleet."""
    if "gpu" in step:
        fleet.set_gpu(gpu_of(step["gpu"]))
    elif "gone" in step:
        fleet.remove_gpu(step["gone"])
    elif "machine" in step:
        fleet.set_node(node_of(step["machine"]))
    elif "learn" in step:
        fleet.learn(request_of(step["learn"]))
    elif "gpus" in step:
        fleet.take(step["gpus"], request_of(step["request"]), node=step.get("node", ""))


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


def _first_changes(steps: Iterable[Step]) -> Iterator[Step]:
    """Return the steps before the first decision."""
    for step in steps:
        if "claim" in step:
            return
        yield step


def _before(done: Round) -> Iterable[Round]:
    return Round.objects.filter(base=done.base_id, pk__lt=done.pk).order_by("pk")


def _contents(base: FleetSnapshot) -> tuple[list[GpuState], list[Any], Mix]:
    state = json.loads(zlib.decompress(base.state))
    mix = [(request_of(row), count) for row, count in state["mix"]]
    return [gpu_of(row) for row in state["gpus"]], [node_of(row) for row in state["nodes"]], mix
