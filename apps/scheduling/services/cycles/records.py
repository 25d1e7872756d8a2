"""What a round is recorded by, and deciding it once more.

A cache's fleet begins as a snapshot. All that then happens to it is a step: what changed, what was learned, what was
asked and answered. Whoever takes the snapshot and the steps up to a round has the fleet as that round saw it.

    {"gpu": {…}}        a GPU is new, or is now so
    {"gone": uuid}      a GPU is the pool's no longer
    {"machine": {…}}    a node is new, or is now so
    {"learn": {…}}      a request has arrived
    {"claim": uid, "request": {…}, "gpus": […] or "reasons": […]}
                        a claim was asked, and the core answered; GPUs bear it from here on
                        "held": {uuid: [core, MiB]}: what of them was kept from it: reserved, or the head's
                        "gang": […], "group": name: the requests that were refused together, its own among them
                        "instead": […]: it was not placed there after all, for these reasons; its GPUs follow as changed
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any, cast

from django.db import transaction

from apps.quotas.models import Pool
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import Held, placing_order
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import GpuState, Label, NodeState, Placed, Refused, Request
from apps.scheduling.models import FleetSnapshot, Round

Step = dict[str, Any]
Value = GpuState | NodeState | Request
Mix = list[tuple[Request, int]]
# A replay reads the steps since the snapshot, and all of them are kept as long as the last: so many rounds, or steps.
MOST_ROUNDS, MOST_STEPS = 1000, 100_000


def value_as_json(value: Value) -> dict[str, Any]:
    """As JSON has it, without what is as it usually is."""
    found = {item.name: (getattr(value, item.name), item.default) for item in fields(value)}
    return {name: now for name, (now, usual) in found.items() if usual is MISSING or now != usual}


def gpu_of(row: Mapping[str, Any]) -> GpuState:
    """A GPU from JSON."""
    labels = tuple(Label(*label) for label in row.get("labels", ()))
    return GpuState(**{**row, "labels": labels})


def node_of(row: Mapping[str, Any]) -> NodeState:
    """A node from JSON."""
    return cast(NodeState, _with_tuples(NodeState, row))


def request_of(row: Mapping[str, Any]) -> Request:
    """A request from JSON."""
    return cast(Request, _with_tuples(Request, row))


def _with_tuples(kind: type[Value], row: Mapping[str, Any]) -> Value:
    pairs = {name: tuple(tuple(item) for item in value) for name, value in row.items() if isinstance(value, list)}
    return kind(**{**row, **pairs})


class Journal:
    """The steps of one fleet since its snapshot, until a round writes them down."""

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
        # What no round has written down. Of what changed twice before anything was asked, the last is kept.
        self._changes: dict[str, Step] = {}
        self._learned: list[Step] = []
        self._steps: list[Step] = []

    @property
    def full(self) -> bool:
        """Whether it is time for another snapshot."""
        return self._rounds >= MOST_ROUNDS or self._written >= max(MOST_STEPS, self._size)

    def record_change(self, step: Step) -> None:
        """Note what is new of a GPU or a node."""
        name = _name(step)
        self._changes.pop(name, None)
        self._changes[name] = step

    def record_arrival(self, request: Request) -> None:
        """Note an arrival."""
        self._learned.append({"learn": value_as_json(request)})

    def record_decision(self, ask: Ask, answer: tuple[Placed, ...] | Refused, *, held: Held) -> list[Step]:
        """Note what was asked and answered; a step for each claim, in the ask's order.

        To a step may be added that something else came of it.
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
        # A gang's claims were tried in another order than the one in which they came.
        self._steps += [steps[claim.id] for claim in placing_order(ask)]
        return [steps[claim.id] for claim in ask.members]

    def discard_refusals(self) -> None:
        """No round is recorded: refusals have changed nothing and are dropped, the rest waits for the next record."""
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
    """An answer as it is recorded and shown."""
    if isinstance(answer, Placed):
        return {"gpus": list(answer.gpus)} | ({"node": answer.node} if answer.node else {})
    return {"reasons": reasons_as_json(answer)}


def reasons_as_json(why: Refused) -> list[dict[str, Any]]:
    """As a claim shows it."""
    return [asdict(reason) for reason in why.reasons]
