"""The facts that `agent status` shows, read from the node."""

import shlex
from typing import NamedTuple

from msgspec import structs

from agent import wire
from agent.claims.audit import Audit
from agent.host.gpus import Inventory
from agent.local_wire import ArbiterStatus, AuditMode, AuditStatus, Found, Held, Run, Status
from agent.node import Node
from agent.server.link import Link

# More of a command is on the job's page.
MOST_OF_COMMAND = 200


class Server(NamedTuple):
    """The node's name at its server, the server's address, the connection to it, and what it has not acknowledged."""

    node: str
    address: str
    link: Link | None
    unacknowledged: int


def describe_status(
    node: Node, inventory: Inventory, server: Server, *, arbiter: ArbiterStatus, audit: AuditStatus
) -> Status:
    """Return the answer to `agent status`."""
    return Status(
        node=server.node,
        server=server.address,
        connected=server.link is not None and server.link.connected,
        frame=node.desired.frame if node.desired else None,
        gpus=len(inventory.gpus),
        gpu_problem=inventory.problem,
        usage_unacknowledged=server.unacknowledged,
        arbiter=arbiter,
        audit=audit,
        assignments=list_assignments(node),
    )


def add_runs(status: Status, desired: wire.Desired | None, observed: wire.Observed) -> Status:
    """Return the status with every run of a job that the agent manages, by claim."""
    states = {one.uid: one for one in observed.jobs or ()}
    wanted = (desired.jobs if desired else None) or ()
    rows = [_run(run, state) for run in wanted if (state := states.get(run.uid)) is not None]
    return structs.replace(status, runs=sorted(rows, key=lambda row: (row.claim, row.started_at or 0.0, row.uid)))


def list_assignments(node: Node) -> list[Held]:
    """Return every assignment that the agent manages, as it stands now, by claim."""
    wanted = {one.uid: one for one in node.desired.assignments} if node.desired else {}
    rows = [_row(node, one, wanted.get(one.uid)) for one in node.observe().assignments]
    return sorted(rows, key=lambda row: (row.claim, row.assignment))


def describe_audit(audit: Audit, mode: AuditMode | wire.AuditPolicy) -> AuditStatus:
    """Return the audit's present findings."""
    return AuditStatus(
        mode=mode,
        findings=[Found(code=one.code, detail=one.detail, process=one.facts) for one in audit.findings],
        unseen=audit.unseen,
    )


def _row(node: Node, observation: wire.Observation, wanted: wire.Assignment | None) -> Held:
    runtime = next((one for one in node.runtimes.values() if observation.uid in one.slots), None)
    slot = runtime.slots[observation.uid] if runtime else None
    gpu = wanted.gpu_uuid if wanted else f"GPU-{slot.gpu}" if slot else ""
    return Held(
        claim=wanted.claim_uid if wanted else runtime.claim_uid if runtime else "",
        assignment=observation.uid,
        tenant=wanted.tenant if wanted else "",
        gpu=gpu,
        state=observation.state,
        reason=observation.reason,
        generation=observation.generation,
        core_request=slot.core_request if slot else 0,
        core_limit=slot.core_limit if slot else 0,
        sharing=slot.sharing if slot else wire.Sharing(),
        allotted_percent=runtime.allotted_percent(observation.uid) if runtime else None,
        memory_bytes=observation.memory_bytes,
        memory_limit_bytes=slot.memory_bytes if slot else 0,
        processes=[process.pid for process in runtime.members.living()] if runtime else [],
    )


def _run(run: wire.JobRun, state: wire.JobState) -> Run:
    return Run(
        uid=run.uid,
        claim=run.claim_uid,
        state=state.state,
        reason=state.reason,
        exit_code=state.exit_code,
        started_at=state.started_at,
        ended_at=state.ended_at,
        output_bytes=state.output_bytes,
        dropped_bytes=state.dropped_bytes,
        image=state.image or run.image,
        command=shlex.join(run.command)[:MOST_OF_COMMAND],
    )
