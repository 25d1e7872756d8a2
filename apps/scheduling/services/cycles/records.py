"""The record of rounds: a snapshot of the fleet, and a step for each thing that happened to it since.

A cached fleet begins as a snapshot. The snapshot and the steps up to a round give the fleet as that round saw it.

    {"gpu": {…}}        a GPU is new, or has changed to this
    {"gone": uuid}      a GPU has left the pool
    {"machine": {…}}    a node is new, or has changed to this
    {"learn": {…}}      a request has arrived
    {"claim": uid, "request": {…}, "gpus": […] or "reasons": […]}
                        the core's answer for a claim; the GPUs carry the claim from here on
                        "held": {uuid: [core, MiB]}: room withheld from it, for a reservation or the head
                        "gang": […], "group": name: the requests that were refused together, its own among them
                        "instead": […]: it was not placed there after all, for these reasons; its GPUs follow as changed
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any, cast

from django.db import transaction

from apps.quotas.models import Pool
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import placing_order
from apps.scheduling.core.mig import Mig, Profile
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import GpuState, Held, Label, NodeState, Placed, Refused, Request
from apps.scheduling.models import FleetSnapshot, Round

Step = dict[str, Any]
Value = GpuState | NodeState | Request
Mix = list[tuple[Request, int]]
# A replay reads the steps since the snapshot, and all of them are stored as long as the last: so a snapshot serves at
# most this many rounds and steps.
MOST_ROUNDS, MOST_STEPS = 1000, 100_000


def value_as_json(value: Value) -> dict[str, Any]:
    """Return the value as a JSON object, without the fields that have their default."""
    found = {item.name: (getattr(value, item.name), item.default) for item in fields(value)}
    return {name: now for name, (now, usual) in found.items() if usual is MISSING or now != usual}


def gpu_of(row: Mapping[str, Any]) -> GpuState:
    """Return the GPU of a JSON object."""
    labels = tuple(Label(*label) for label in row.get("labels", ()))
    return GpuState(**{**row, "labels": labels, "mig": _mig_of(row.get("mig"))})


def _mig_of(row: Sequence[Any] | None) -> Mig | None:
    if row is None:
        return None
    profiles, used, ready = row
    found = (Profile(name, compute, memory, size, tuple(starts)) for name, compute, memory, size, starts in profiles)
    return Mig(tuple(found), used, ready)


def node_of(row: Mapping[str, Any]) -> NodeState:
    """Return the node of a JSON object."""
    return cast(NodeState, _with_tuples(NodeState, row))


def request_of(row: Mapping[str, Any]) -> Request:
    """Return the request of a JSON object."""
    return cast(Request, _with_tuples(Request, row))


def _with_tuples(kind: type[Value], row: Mapping[str, Any]) -> Value:
    pairs = {name: tuple(tuple(item) for item in value) for name, value in row.items() if isinstance(value, list)}
    return kind(**{**row, **pairs})


class Journal:
    """The steps of one fleet since its snapshot, until a round writes them."""

    def __init__(self, fleet: Fleet, *, policy: str, mix: Mix) -> None:
        self._policy = policy
        self._size = len(fleet.gpus())
        self._state: dict[str, Any] | None = {
            "gpus": [value_as_json(gpu) for gpu in fleet.gpus()],
            "nodes": [value_as_json(node) for node in fleet.nodes()],
            "mix": [[value_as_json(request), count] for request, count in mix],
        }
        self._base: FleetSnapshot | None = None
        self._rounds = self._written = 0
        # Steps that no round has written. Of several changes of one thing before a decision, the last is stored.
        self._changes: dict[str, Step] = {}
        self._learned: list[Step] = []
        self._steps: list[Step] = []

    @property
    def full(self) -> bool:
        """True if it is time for another snapshot."""
        return self._rounds >= MOST_ROUNDS or self._written >= max(MOST_STEPS, self._size)

    @property
    def pending(self) -> int:
        """Number of steps that no round has written."""
        return len(self._changes) + len(self._learned) + len(self._steps)

    def record_change(self, step: Step) -> None:
        """Record a change of a GPU or a node."""
        name = _name(step)
        self._changes.pop(name, None)
        self._changes[name] = step

    def record_arrival(self, request: Request) -> None:
        """Record the arrival of a request."""
        self._learned.append({"learn": value_as_json(request)})

    def record_decision(self, ask: Ask, answer: tuple[Placed, ...] | Refused, *, held: Held) -> list[Step]:
        """Record an ask and its answer; return a step for each claim, in the ask's order.

        The caller may add `instead` to a step if something else came of it.
        """
        self._flush()
        shared: Step = {"held": {gpu: list(amounts) for gpu, amounts in held.items()}} if held else {}
        steps: dict[str, Step] = {
            claim.id: {"claim": claim.id, "request": value_as_json(claim.request), **shared} for claim in ask.members
        }
        if isinstance(answer, Refused):
            if len(steps) > 1:
                shared["gang"] = [value_as_json(claim.request) for claim in ask.members]
                shared["group"] = ask.members[0].group
            for step in steps.values():
                step.update(shared | answer_as_json(answer))
        else:
            for claim, placed in zip(ask.members, answer, strict=True):
                steps[claim.id].update(answer_as_json(placed))
        # A gang's claims are tried in another order than the one in which they came.
        self._steps += [steps[claim.id] for claim in placing_order(ask)]
        return [steps[claim.id] for claim in ask.members]

    def discard_refusals(self) -> None:
        """Drop the refusals, as no round is recorded; the other steps wait for the next record."""
        steps = [step for step in self._steps if "reasons" not in step]
        if any("claim" in step for step in steps):
            self._steps = steps
            return
        later, self._changes, self._steps = self._changes, {}, []
        self._learned = [step for step in steps if "learn" in step] + self._learned
        for step in [*(step for step in steps if "learn" not in step), *later.values()]:
            self.record_change(step)

    @transaction.atomic
    def write(self, *, pool: Pool, **facts: Any) -> Round:
        """Record a round with all steps until now."""
        self._flush()
        if self._base is None:
            state = zlib.compress(json.dumps(self._state, separators=(",", ":")).encode())
            self._base, self._state = FleetSnapshot.objects.create(pool=pool, policy=self._policy, state=state), None
        done = Round.objects.create(pool=pool, base=self._base, steps=self._steps, **facts)
        self._rounds += 1
        self._written += len(self._steps)
        self._steps = []
        return done

    def _flush(self) -> None:
        self._steps += [*self._changes.values(), *self._learned]
        self._changes, self._learned = {}, []


def _name(step: Step) -> str:
    if "machine" in step:
        return f"machine {step['machine']['name']}"
    return str(step["gone"] if "gone" in step else step["gpu"]["uuid"])


def answer_as_json(answer: Placed | Refused) -> Step:
    """Return an answer as it is recorded and shown."""
    if isinstance(answer, Placed):
        return {"gpus": list(answer.gpus)} | ({"node": answer.node} if answer.node else {})
    return {"reasons": reasons_as_json(answer)}


def reasons_as_json(why: Refused) -> list[dict[str, Any]]:
    """Return the reasons of a refusal as a claim shows them."""
    return [asdict(reason) for reason in why.reasons]
