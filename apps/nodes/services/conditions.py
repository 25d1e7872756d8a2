"""Storage of conditions from agents; unhealthy nodes and GPUs accept no new claims."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from django.db import transaction

from agent import wire
from apps.nodes.models import Condition, Gpu, Node
from apps.nodes.services import agent_rows

FIELDS = ("status", "reason", "message", "since_seconds", "since", "unschedulable")
GOOD = "True"
_XID = re.compile(r"^Xid(\d+)$")


class Change(NamedTuple):
    """A condition that became good or stopped being good; `gpu` None: the node's."""

    gpu: Gpu | None
    condition: Condition
    # False if the node's agent has exceeded its rate limit of audit rows.
    recorded: bool = True


@transaction.atomic
def take_conditions(*, node: Node, frame: wire.Conditions) -> list[Change]:
    """Replace the node's conditions by the frame's; return those that became good or stopped being good.

    Conditions of other nodes' GPUs are skipped. Each change is written to the audit log in the agent's name, up to a
    rate limit.
    """
    # Order of locks: GPUs before their node, in key order, as in a round.
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.select_for_update().filter(node=node).order_by("pk")}
    node = Node.objects.select_for_update().get(pk=node.pk)
    known = {(row.gpu_id, row.type): row for row in Condition.objects.filter(node=node)}
    said = {(row.gpu_id, row.type): row for row in (_row(node, gpus, one) for one in frame.conditions) if row}
    by_key = {gpu.pk: gpu for gpu in gpus.values()}
    changes = [
        Change(by_key.get(gpu_id or 0), row)
        for (gpu_id, kind), row in said.items()
        if _is_good(known.get((gpu_id, kind))) != _is_good(row)
    ]
    _keep(known, said)
    changes = [change._replace(recorded=_record(node, change)) for change in changes]
    _judge(node, list(gpus.values()), list(said.values()))
    return changes


# The condition `Ready` for each state of a node.
READY = {
    "ready": ("True", "AgentHeard", ""),
    "awaiting-agent": ("Unknown", "NeverConnected", "Its agent has not connected yet."),
    "lost": ("Unknown", "AgentSilent", "No sign of life. Its programs keep their last limits."),
    "draining": ("False", "Draining", "An operator drains it: it takes no new claims, and those on it leave."),
    "cordoned": ("False", "Cordoned", "An operator cordoned it: it takes no new claims."),
    "fenced": ("False", "Fenced", "It takes no new claims until an operator lifts the fence."),
    "returning": ("False", "Returning", "It takes no new claims until its agent has ended what was moved away."),
    "unhealthy": ("False", "Unhealthy", "It takes no new claims while another condition says so."),
}


def of_node(node: Node) -> list[Condition]:
    """Return `Ready`, which follows from the node's state, then the conditions from its agent."""
    status, reason, message = READY[node.state]
    ready = Condition(type="Ready", status=status, reason=reason, message=message, unschedulable=status != GOOD)
    return [ready, *(row for row in node.conditions.all() if row.gpu_id is None)]


def describe(conditions: Iterable[Condition]) -> str:
    """Return the reasons of the conditions that keep claims off, in short: `XID 79, RemapPending`."""
    reasons = sorted({_XID.sub(r"XID \1", one.reason) for one in conditions if one.unschedulable})
    return ", ".join(reasons)[:200]


def _row(node: Node, gpus: dict[str, Gpu], said: wire.Condition) -> Condition | None:
    if said.gpu_uuid is not None and said.gpu_uuid not in gpus:
        return None
    return Condition(
        node=node,
        gpu=gpus[said.gpu_uuid] if said.gpu_uuid is not None else None,
        type=said.type,
        status=said.status,
        reason=said.reason,
        message=said.message,
        since_seconds=said.since,
        since=datetime.fromtimestamp(said.since, tz=UTC),
        unschedulable=said.unschedulable,
    )


def _is_good(row: Condition | None) -> bool:
    # A condition without a report counts as good: the first report of a healthy node is not a change.
    return row is None or row.status == GOOD


Key = tuple[int | None, str]


def _keep(known: dict[Key, Condition], said: dict[Key, Condition]) -> None:
    for key, row in known.items():
        new = said.get(key)
        if new is None:
            row.delete()
        elif any(getattr(row, name) != getattr(new, name) for name in FIELDS):
            for name in FIELDS:
                setattr(row, name, getattr(new, name))
            row.save(update_fields=FIELDS)
    Condition.objects.bulk_create([row for key, row in said.items() if key not in known])


def _record(node: Node, change: Change) -> bool:
    row = change.condition
    return agent_rows.record(
        node=node,
        limit=agent_rows.CONDITIONS,
        action="node.condition",
        after={
            "gpu": change.gpu.uuid if change.gpu is not None else None,
            "type": row.type,
            "status": row.status,
            "reason": row.reason,
            "detail": row.message,
        },
    )


def _judge(node: Node, gpus: list[Gpu], rows: list[Condition]) -> None:
    """Store the reasons for placement; rows are written only if changed, because each write wakes a round."""
    for gpu in gpus:
        now = describe(row for row in rows if row.gpu_id == gpu.pk)
        if now != gpu.unhealthy:
            gpu.change(unhealthy=now)
    now = describe(row for row in rows if row.gpu_id is None)
    if now != node.unhealthy:
        node.change(unhealthy=now)
