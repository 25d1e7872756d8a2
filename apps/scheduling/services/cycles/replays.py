"""The fleet as a recorded round found it."""

import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState
from apps.scheduling.models import FleetSnapshot, Round
from apps.scheduling.services.cycles.records import Mix, Step, gpu_of, node_of, request_of


def gpus_seen(done: Round) -> list[GpuState]:
    """Return the GPUs as the round found them."""
    fleet = fleet_before(done)
    for step in first_changes(done.steps):
        apply(fleet, step)
    return list(fleet.gpus())


def fleet_before(done: Round) -> Fleet:
    """Return the fleet as the round before left it."""
    gpus, nodes, mix = contents_of(done.base)
    fleet = Fleet(gpus, nodes, policy=done.base.policy, mix=mix)
    for earlier in earlier_rounds(done):
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


def first_changes(steps: Iterable[Step]) -> Iterator[Step]:
    """Return the steps before the first decision."""
    for step in steps:
        if "claim" in step:
            return
        yield step


def earlier_rounds(done: Round) -> Iterable[Round]:
    """Return the rounds before this one that share its snapshot, oldest first."""
    return Round.objects.filter(base=done.base_id, pk__lt=done.pk).order_by("pk")


def contents_of(base: FleetSnapshot) -> tuple[list[GpuState], list[Any], Mix]:
    """Return GPUs, nodes and mix of a snapshot."""
    state = json.loads(zlib.decompress(base.state))
    mix = [(request_of(row), count) for row, count in state["mix"]]
    return [gpu_of(row) for row in state["gpus"]], [node_of(row) for row in state["nodes"]], mix
