"""Orders to suspend and to resume a claim, and what a suspension would free.

Host memory is charged, to the quota and to the node, before the agent is asked. The GPUs are charged until it has
reported that the programs left them (`apps.scheduling.services.claims.suspension_reports`). A claim that resumes goes
into the queue, uncharged but for its host memory, and a round charges it and gives it GPUs of its node
(`apps.scheduling.services.cycles.resuming`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from django.db import transaction
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.models import Resource
from apps.quotas.models.pool import BackEnd
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.refusals import amount_in_words
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.claim import PUT_ASIDE
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import WrongState, locked, raise_frames
from apps.scheduling.services.cycles.resuming import without_pause
from apps.scheduling.services.previews.dry_runs import rehearse
from gpucloud.api import etags
from gpucloud.errors import Conflict

# What the owner can do in the other states.
ADVICE = {
    ClaimState.ASSIGNED: "wait until it is active",
    ClaimState.SUSPENDING: "wait until it is suspended",
    ClaimState.RESUMING: "wait until it is active",
    ClaimState.FAILED: "its node could not put it in force; release it, or repair the node",
}


class CannotSuspend(Conflict, code="cannot-suspend", title="This kind of claim cannot be suspended"):
    """The claim belongs to a cluster's pod or ResourceClaim, to a reservation, or to a group, or it runs under MPS."""


class SuspendUnsupported(Conflict, code="suspend-unsupported", title="The node cannot suspend claims"):
    """The driver or the agent of the claim's node cannot suspend processes."""


class NodeUnreachable(Conflict, code="node-unreachable", title="The node is not connected"):
    """The agent of the claim's node is silent, so nothing would happen."""


class NoHostMemory(Conflict, code="no-host-memory", title="The node has no memory for this"):
    """The memory that the node gives to suspended claims has no room for this one."""


@transaction.atomic
def suspend_claim(
    *,
    principal: Principal,
    claim: Claim,
    versions: etags.Versions = None,
    by: str = SuspendedBy.OWNER,
    why: str | None = None,
) -> Claim:
    """Have the claim's programs leave their GPUs; take a claim that waits to resume out of the queue. Repeatable.

    `by`: whose order it is (`SuspendedBy`), kept until the claim is active again. An order of the owner makes the claim
    the owner's; another order leaves a claim that is put aside already to whom it is. `why`: shown to the owner.

    Raises WrongState, CannotSuspend, SuspendUnsupported, NodeUnreachable, NoHostMemory, QuotaExceeded (of host memory),
    PreconditionFailed, RoleMissing.
    """
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    _refuse_moving(claim)
    if claim.state in (ClaimState.SUSPENDING, ClaimState.SUSPENDED):
        return _take_over(claim, principal) if by == SuspendedBy.OWNER else claim
    before = {"state": claim.state}
    values = {"suspended_by": by, "reasons": [{"code": by, "gpus": 0, "detail": why}] if why else []}
    facts = {"by": by, **({"why": why} if why else {})}
    if claim.waits_to_resume:
        states.move(claim, ClaimState.SUSPENDED, assigned_at=without_pause(claim, timezone.now()), **values)
        _record(principal, "claim.suspend", claim, before, {"state": claim.state, **facts})
        return claim
    refuse_state(claim, wanted=ClaimState.ACTIVE, what="suspended")
    refuse_kind(claim)
    assignments = list(claim.assignments.live().select_related("gpu__node").order_by("gpu_id"))
    refuse_gpus([item.gpu for item in assignments])
    memory_mib = sum(item.held_memory_mib for item in assignments)
    # The order of locks: quotas, GPUs (of lent core), nodes.
    states.charge_to(claim, {**claim.charged, Resource.HOST_MEMORY_MIB: memory_mib}, principal=principal)
    begin_suspension(claim, assignments, **values)
    raise_frames({item.gpu.node_id for item in assignments})
    after = {"state": claim.state, "host_memory_mib": memory_mib, **facts}
    _record(principal, "claim.suspend", claim, before, after)
    return claim


def _take_over(claim: Claim, principal: Principal) -> Claim:
    """Make a claim that the platform has put aside its owner's: only the owner resumes it."""
    if claim.suspended_by != SuspendedBy.OWNER:
        before = {"by": claim.suspended_by}
        states.move(claim, claim.state, suspended_by=SuspendedBy.OWNER, reasons=[])
        audit.record(principal, "claim.suspend", claim, before=before, after={"by": claim.suspended_by})
    return claim


@transaction.atomic
def resume_claim(
    *, principal: Principal, claim: Claim, versions: etags.Versions = None, by: str = SuspendedBy.OWNER
) -> Claim:
    """Have a suspended claim wait in the queue for GPUs of its node. Repeatable.

    `by`: whose order it is. The owner's resumes every claim, another one only what it has put aside itself.

    Raises WrongState, PreconditionFailed, RoleMissing.
    """
    principal.require_role(claim.tenant, "member")
    claim = locked(claim, versions)
    if claim.state in (ClaimState.RESUMING, ClaimState.ACTIVE) or by not in (SuspendedBy.OWNER, claim.suspended_by):
        return claim
    refuse_state(claim, wanted=ClaimState.SUSPENDED, what="resumed")
    before = {"state": claim.state}
    states.move(claim, ClaimState.RESUMING, reasons=[])
    _record(principal, "claim.resume", claim, before, {"state": claim.state, "by": by})
    return claim


def _record(principal: Principal, action: str, claim: Claim, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Audit an order; not the rotation's: it gives two every few minutes, and audits where a claim begins and ends."""
    if after["by"] != SuspendedBy.ROTATION:
        audit.record(principal, action, claim, before=before, after=after)


def find_obstacles(claims: Sequence[Claim]) -> dict[int, str]:
    """Return by key why each of these claims could not be suspended now, together with those before it.

    Those that only a quota could be against are left out.
    """
    live = Assignment.objects.live().filter(claim__in=claims).select_related("gpu__node").order_by("gpu_id")
    held: dict[int, list[Assignment]] = {claim.pk: [] for claim in claims}
    for item in live:
        held[item.claim_id].append(item)
    # One object of each node, which takes what the claims before need.
    nodes = {item.gpu.node_id: item.gpu.node for item in live}
    found: dict[int, str] = {}
    for claim in claims:
        needed: Counter[int] = Counter()
        for item in held[claim.pk]:
            needed[item.gpu.node_id] += item.held_memory_mib
        try:
            refuse_state(claim, wanted=ClaimState.ACTIVE, what="suspended")
            refuse_kind(claim)
            refuse_back_ends(item.gpu for item in held[claim.pk])
            refuse_nodes([nodes[key] for key in needed])
            for key, memory_mib in needed.items():
                if memory_mib > nodes[key].host_memory_mib - nodes[key].host_memory_used_mib:
                    refuse_memory(nodes[key], memory_mib)
        except Conflict as error:
            found[claim.pk] = error.detail
            continue
        for key, memory_mib in needed.items():
            nodes[key].host_memory_used_mib += memory_mib
    return found


def rehearse_suspend(
    act: Callable[[], Claim], show: Callable[[Claim], dict[str, Any]], *, claim: Claim
) -> dict[str, Any]:
    """Return the claim as it would be suspended, with the amounts that would come free, and those of its nodes."""
    shown = rehearse(act, show)
    return {**shown, "frees": frees(claim), "host_memory": host_memory(claim)}


def frees(claim: Claim) -> dict[str, int]:
    """Return the amounts, by resource, that a suspension of the claim gives back to its quota and GPUs."""
    return {name: amount for name, amount in claim.charged.items() if name != Resource.HOST_MEMORY_MIB}


def host_memory(claim: Claim) -> list[dict[str, Any]]:
    """Return the memory that the claim's suspension needs on each of its nodes, and what is free there."""
    needed: Counter[int] = Counter()
    for item in claim.assignments.live().select_related("gpu"):
        needed[item.gpu.node_id] += item.held_host_memory_mib or item.held_memory_mib
    return [
        {
            "node": node.name,
            "needed_mib": needed[node.pk],
            "free_mib": max(0, node.host_memory_mib - node.host_memory_used_mib),
        }
        for node in Node.objects.filter(pk__in=needed).order_by("name")
    ]


def refuse_state(claim: Claim, *, wanted: str, what: str) -> None:
    if claim.state != wanted:
        advice = ADVICE.get(ClaimState(claim.state))
        then = f": {advice}." if advice else "."
        article = "an active" if wanted == ClaimState.ACTIVE else "a suspended"
        raise WrongState(f"The claim is {claim.state}, and only {article} claim can be {what}{then}", state=claim.state)


def _refuse_moving(claim: Claim) -> None:
    live = claim.assignments.live()
    if claim.state in PUT_ASIDE and live.filter(other_gpu__isnull=False).exists():
        raise WrongState("The claim is being moved: wait until it is active.", state=claim.state)
    if live.filter(counterpart__isnull=False).exists():
        raise WrongState("The claim moves to another node: wait until its former node has ended.", state=claim.state)


def refuse_kind(claim: Claim) -> None:
    if claim.pod is not None:
        kind = "ResourceClaim" if claim.is_of_resource_claim else "pod"
        raise CannotSuspend(
            f"Its cluster decides when its {kind} runs: scale the workload down, or end the {kind}.", of=kind
        )
    if claim.profile is not None:
        raise CannotSuspend(
            "The driver cannot suspend programs in a MIG instance: release the claim, and make it anew.", of="instance"
        )
    if claim.memory_limit_mib is not None:
        raise CannotSuspend(
            "Its programs borrow memory of their GPU, and programs that do can be neither suspended nor moved: release "
            "the claim, or set memory_limit_mib to null.",
            of="memory limit",
        )
    if claim.reservation is not None:
        raise CannotSuspend(
            "Its room is reserved, so nobody else could use it: release the claim, or the reservation.",
            of="reservation",
        )
    if claim.group is not None:
        raise CannotSuspend(
            f"The claims of group {claim.group} run together, so one alone would stop the others: release the group.",
            of="group",
        )


def refuse_nodes(nodes: Sequence[Node]) -> None:
    for node in nodes:
        if not node.online:
            raise NodeUnreachable(f"Node {node.name} is not connected: try again when it is back.", node=node.name)
        if not node.can_suspend:
            raise SuspendUnsupported(
                f"Node {node.name} cannot suspend programs: its agent or its GPU driver (570 or newer is needed) does "
                "not support it. Ask an operator to upgrade them, or release the claim.",
                node=node.name,
                driver_version=node.driver_version,
            )


def refuse_gpus(gpus: Sequence[Gpu]) -> None:
    """Refuse GPUs whose programs cannot be suspended now. Raises CannotSuspend, NodeUnreachable, SuspendUnsupported."""
    refuse_back_ends(gpus)
    refuse_nodes([gpu.node for gpu in gpus])


def refuse_back_ends(gpus: Iterable[Gpu]) -> None:
    """Refuse what the driver would refuse: it cannot move the memory of clients of MPS. Raises CannotSuspend."""
    if any(gpu.backend == BackEnd.MPS for gpu in gpus):
        raise CannotSuspend(
            "Its GPU has the back end mps, and the driver cannot move the memory of clients of MPS: programs there can "
            "be neither suspended nor moved. Release the claim, or let it end.",
            of="back end mps",
        )


def begin_suspension(claim: Claim, assignments: Sequence[Assignment], **values: object) -> None:
    """Want the claim's programs off these GPUs, and take the host memory for them. Raises NoHostMemory."""
    states.move(claim, ClaimState.SUSPENDING, generation=claim.generation + 1, **values)
    needed: Counter[int] = Counter()
    for item in assignments:
        needed[item.gpu.node_id] += item.held_memory_mib
        item.change(
            state=AssignmentState.SUSPENDING,
            generation=item.generation + 1,
            held_host_memory_mib=item.held_memory_mib,
            other_gpu=item.other_gpu,
            reason=None,
        )
    for node_id, memory_mib in sorted(needed.items()):
        if not capacity.take_host_memory(node_id=node_id, memory_mib=memory_mib):
            refuse_memory(Node.objects.get(pk=node_id), memory_mib)


def refuse_memory(node: Node, memory_mib: int) -> NoReturn:
    free = max(0, node.host_memory_mib - node.host_memory_used_mib)
    short = [amount_in_words(Resource.MEMORY_MIB, amount) for amount in (memory_mib, free, node.host_memory_mib)]
    raise NoHostMemory(
        "Host memory of node {} exceeded: requested {}, {} of {} available. Resume or release suspended claims "
        "there, or ask an operator for more.".format(node.name, *short),
        node=node.name,
        requested=memory_mib,
        free=free,
        host_memory_mib=node.host_memory_mib,
    )
