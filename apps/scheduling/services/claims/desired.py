"""The desired state of nodes, and the secrets by which processes prove that they belong to a claim."""

import hashlib
import hmac
import logging
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec
from django.conf import settings
from django.db.models import QuerySet
from msgspec import UNSET, UnsetType

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.nodes.services.back_ends import back_end_of, trust_group_of
from apps.quotas.models.pool import MigInstances
from apps.scheduling.models import Assignment, AssignmentState
from apps.scheduling.models.assignment import WANTED_SUSPENDED
from apps.scheduling.models.choices import Remote
from apps.scheduling.models.claim import RESOURCE_CLAIM
from apps.scheduling.providers import jobs
from apps.scheduling.services.claims import shared_instances
from apps.scheduling.services.claims.elastic import groups_on_the_wire
from gpucloud.fastpath.compiled_queries import compiled_query

logger = logging.getLogger(__name__)

MIB = 1 << 20


def claim_secret(claim_uid: uuid.UUID) -> str:
    """Return the claim's secret. It is derived, not stored; the agent has its digest only.

    A caller who may read the claim's environment gets it.
    """
    text = f"claim:{claim_uid}".encode()
    return "gps_" + hmac.new(settings.SECRET_KEY.encode(), text, hashlib.sha256).hexdigest()


def desired_state(node: Node) -> wire.Desired:
    """Return the whole desired state of the node."""
    return desired_states([node.pk])[node.pk]


# The node first, then what `_on_the_wire` reads of an assignment: rows, not objects, as a change may concern every node
# of a fleet.
COLUMNS = (
    "gpu__node_id", "uid", "claim__uid", "claim__tenant__slug", "gpu__uuid", "generation", "core_request", "core_limit",
    "memory_mib", "borrowed_core", "state", "claim__pool__sharing_policy", "claim__weight", "claim__best_effort",
    "claim__pool__core_ceiling", "claim__pool__parts", "claim__name", "claim__pod", "gpu__node__kubernetes_node",
    "end_seconds", "claim__group_uid", "carry", "counterpart_id", "claim__profile", "mig_start", "mig_size",
    "gpu__backend", "claim__gpu_count", "claim__own_core", "claim__own_memory_mib", "claim__instance_of",
    "gpu__node__pool__mig", "gpu__mps_group", "memory_limit_mib", "gpu__memory_mib", "claim__remote",
    "claim__pool__remote", "claim__tenant__remote", "gpu__node__remote",
)  # fmt: skip


GROUP_UID, OWN_CORE = COLUMNS.index("claim__group_uid"), COLUMNS.index("claim__own_core")
Wanted: Any = NamedTuple("Wanted", [(name, Any) for name in COLUMNS])  # type: ignore[misc]  # the names are the query's


def desired_states(node_ids: Iterable[int]) -> dict[int, wire.Desired]:
    """Return the whole desired states of these nodes, as far as they exist.

    A frame's number is read before its contents, so contents are never older than the number says.
    """
    of_nodes = (
        "pk", "frame", "repair_drift", "pool__repair_drift", "repair_asked_at", "pool__audit_policy", "pool__backend",
        "pool__longest_kernel_ms",
    )  # fmt: skip
    nodes = list(Node.objects.filter(pk__in=node_ids).order_by("pk").values_list(*of_nodes))
    found = [pk for pk, *_ in nodes]
    wanted: dict[int, list[wire.Assignment]] = {node_id: [] for node_id in found}
    # The claims of each elastic group on each node.
    grouped: dict[tuple[int, uuid.UUID], list[str]] = {}
    rows = list(_rows_of(found))
    opened = shared_instances.find_opened(Wanted._make(columns) for columns in rows if columns[OWN_CORE] is not None)
    for columns in rows:
        node_id, row = columns[0], Wanted._make(columns)
        wanted[node_id].append(shared_instances.with_limits(_on_the_wire(row), row, opened))
        if group_uid := columns[GROUP_UID]:
            grouped.setdefault((node_id, group_uid), []).append(wanted[node_id][-1].claim_uid)
    groups = groups_on_the_wire(grouped)
    runs = provided.orders(found) if (provided := jobs.find()) is not None else {}
    cleared = _cleared(found)
    return {
        pk: wire.Desired(
            frame=frame,
            policy=_policy(audit, backend, longest_ms, cleared.get(pk, {})),
            assignments=wanted[pk],
            mend=UNSET if all(mends) or asked_at is not None else False,
            groups=groups.get(pk, UNSET),
            jobs=runs.get(pk) or UNSET,
        )
        for pk, frame, *mends, asked_at, audit, backend, longest_ms in nodes
    }


def _rows_of(node_ids: list[int]) -> Iterable[Any]:
    """Return the live assignments of these nodes. One node is the case of every push and connecting agent."""
    if len(node_ids) == 1:
        return _rows_of_one(node_ids[0])
    rows = Assignment.objects.filter(gpu__node__in=node_ids).live().order_by("pk")
    return rows.values_list(*COLUMNS)


@compiled_query
def _rows_of_one(node_id: Any) -> QuerySet[Assignment, Any]:
    rows = Assignment.objects.filter(gpu__node=node_id).live().order_by("pk")
    return rows.values_list(*COLUMNS)


def _cleared(node_ids: list[int]) -> dict[int, dict[str, float]]:
    """Return the times through which operators cleared GPUs, by node and GPU."""
    cleared: dict[int, dict[str, float]] = {}
    gpus = Gpu.objects.filter(node__in=node_ids, cleared_through_seconds__gt=0).order_by("pk")
    for node_id, uuid_, through in gpus.values_list("node_id", "uuid", "cleared_through_seconds"):
        cleared.setdefault(node_id, {})[uuid_] = through
    return cleared


def _policy(audit: Any, backend: Any, longest_ms: int | None, cleared: dict[str, float]) -> wire.NodePolicy | UnsetType:
    """Return the wishes of pool and operators beside assignments; left out if they are the default."""
    policy = wire.NodePolicy(audit=audit, backend=backend, longest_kernel_ms=longest_ms or 0, cleared=cleared)
    return UNSET if policy == wire.NodePolicy() else policy


def _on_the_wire(row: Any) -> wire.Assignment:
    sharing = wire.Sharing(
        policy=cast(wire.Policy, row.claim__pool__sharing_policy),
        weight=row.claim__weight,
        best_effort=row.claim__best_effort,
        ceiling=row.claim__pool__core_ceiling,
        parts=row.claim__pool__parts,
    )
    borrowing = _borrowing(row)
    is_alone = row.mig_start is not None and row.claim__own_core is None
    return wire.Assignment(
        uid=str(row.uid),
        claim_uid=str(row.claim__uid),
        claim_name=row.claim__name,
        tenant=row.claim__tenant__slug,
        gpu_uuid=row.gpu__uuid,
        generation=row.generation,
        # Borrowed core is guaranteed to another claim.
        core_request=0 if row.borrowed_core else row.core_request,
        core_limit=row.core_limit,
        memory_bytes=(row.memory_mib if borrowing is None else min(row.memory_limit_mib, row.gpu__memory_mib)) * MIB,
        borrowing=borrowing,
        sharing=None if sharing == wire.Sharing() or is_alone else sharing,
        backend="turns" if row.claim__profile else back_end_of(row.gpu__backend, row.claim__gpu_count),
        trust_group=trust_group_of(row.gpu__backend, row.gpu__mps_group),
        secret_digest=hashlib.sha256(claim_secret(row.claim__uid).encode()).hexdigest(),
        **(_of_cluster(row) if row.claim__pod and row.gpu__node__kubernetes_node else {}),
        suspended=row.state in WANTED_SUSPENDED,
        end_seconds=row.end_seconds or 0,
        carry=_carry(row),
        mig=_instance(row),
        prepared=row.mig_start is not None and row.gpu__node__pool__mig == MigInstances.STATIC,
        present=row.state != AssignmentState.RELEASING,
        remote_refused=_refusal_of_clients(row) if row.gpu__node__remote is not None else "",
    )


def _refusal_of_clients(row: Any) -> str:
    """Return why no client of another machine may use the claim; empty: nothing is against it."""
    if row.claim__remote == Remote.NEVER:
        return "the claim's field `remote` is never"
    if not row.claim__pool__remote:
        return "the claim's pool does not allow remote shares any more"
    return "" if row.claim__tenant__remote else "the claim's tenant may not have remote shares any more"


def _borrowing(row: Any) -> wire.Borrowing | None:
    if row.memory_limit_mib is None:
        return None
    host_mib = row.memory_limit_mib - row.memory_mib
    return wire.Borrowing(memory_request_bytes=row.memory_mib * MIB, host_memory_bytes=host_mib * MIB)


def _carry(row: Any) -> wire.Carry | None:
    """Return the part of a carry: the new node offers a ticket, and the old one gets it."""
    if row.carry is None:
        return None
    is_new = row.counterpart_id is not None or not row.carry
    return wire.Carry(ticket=None if is_new else msgspec.convert(row.carry, wire.Ticket))


def _instance(row: Any) -> wire.MigPlace | None:
    if row.mig_start is None:
        return None
    return wire.MigPlace(profile=row.claim__profile, start=row.mig_start, size=row.mig_size)


def _of_cluster(row: Any) -> dict[str, Any]:
    """Return the claim's pod or ResourceClaim as fields of the assignment.

    Names that an agent would refuse are left out, as the other claims must not wait for them.
    """
    pod = row.claim__pod
    try:
        if pod.get("kind") != RESOURCE_CLAIM:
            return {"pod": msgspec.convert(pod, wire.Pod), "pod_uid": str(pod.get("uid", ""))}
        names = {key: pod[key] for key in ("namespace", "name", "uid")}
        device = pod["devices"][row.gpu__uuid]
        return {"resource_claim": msgspec.convert({**names, **device}, wire.ResourceClaim)}
    except (msgspec.ValidationError, LookupError) as error:
        logger.warning("claim %s has a pod that is not sent to its node: %s", row.claim__uid, error)
        return {}
