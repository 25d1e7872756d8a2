"""One container of a running pod: its claim and its GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from apps.clusters.formats.asks import LEAST_CORE, Share
from apps.clusters.importing.plan import PodWanted
from apps.clusters.models import Cluster, PodClaim, SharePod
from apps.clusters.services import placing
from apps.nodes.models import Gpu, Node
from apps.scheduling.models import Claim


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container to record. `found`: the claim for which its pod was created, or None."""

    pod: PodWanted
    place: int
    name: str
    node: Node
    gpus: list[Gpu]
    # Fields of the claim, the same on each of its GPUs.
    asked: Mapping[str, int]
    found: Claim | None

    @property
    def claim_fields(self) -> dict[str, Any]:
        """Fields of a new claim."""
        pod = self.pod
        return {
            "name": f"{pod.namespace}/{pod.name}"[:200],
            "pod": {"namespace": pod.namespace, "name": pod.name, "container": self.name, "uid": pod.uid},
            **self.asked,
            **pod.labels,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of the PodClaim row beside the claim."""
        return {
            "namespace": self.pod.namespace,
            "pod": self.pod.name,
            "container_index": self.place,
            "node_name": self.pod.node,
            "node": self.node,
            "core": self.asked["core_request"] * len(self.gpus),
            "memory_mib": self.asked["memory_mib"] * len(self.gpus),
            "gpu_indexes": sorted(gpu.index for gpu in self.gpus),
            "problem": "",
        }

    def __str__(self) -> str:
        where = ", ".join(f"GPU {gpu.index} of {self.node.name}" for gpu in self.gpus)
        asked = self.asked
        return f"container {self.name} holds {asked['core_request']} percent and {asked['memory_mib']} MiB on {where}."

    def require_there(self) -> None:
        """Raise NotAsItRuns if the found claim was requeued or moved away from the pod's GPUs."""
        assert self.found is not None
        there = self.found.assignments.live().values_list("gpu_id", flat=True)
        if {gpu.pk for gpu in self.gpus} != set(there):
            raise placing.NotAsItRuns(f"Its claim {self.found.uid} is elsewhere by now: the pod is to end.")


def plan_container(
    pod: PodWanted, held: tuple[int, str, tuple[Share, ...]], cluster: Cluster, rows: QuerySet[PodClaim]
) -> ContainerPlan | None:
    """Return the plan of this container; None if it has a claim or has ended. Raises NotAsItRuns."""
    place, name, shares = held
    row = rows.filter(cluster=cluster, pod_uid=pod.uid, container=name).first()
    if row is not None and (row.claim_id is not None or row.ended_at is not None):
        return None
    node = placing.node_of(cluster.pool, pod.node)
    gpus = [gpu_of(share, node) for share in shares]
    return ContainerPlan(
        pod, place, name, node, gpus, claim_amounts(shares, gpus, name), _of_sharepod(pod, name, cluster)
    )


def gpu_of(share: Share, node: Node) -> Gpu:
    """Return the node's GPU of the share. Raises NotAsItRuns."""
    named: dict[str, Any] = {"index": share.gpu_index} if share.gpu_uuid is None else {"uuid": share.gpu_uuid}
    found = node.gpus.filter(present=True, **named).first()
    if found is None:
        which = share.gpu_uuid or f"GPU {share.gpu_index}"
        raise placing.NotAsItRuns(f"Node {node.kubernetes_node or node.name} has no {which}.")
    return found


def _of_sharepod(pod: PodWanted, container: str, cluster: Cluster) -> Claim | None:
    """Return the claim for which the pod was created; the pod's annotation alone is not trusted."""
    if not pod.claim:
        return None
    named = {"namespace": pod.namespace, "name": pod.name}
    live = SharePod.objects.filter(cluster=cluster, ended_at=None, **named).select_related("claim")
    wanted = {**named, "container": container}
    return next((row.claim for row in live if str(row.claim.uid) == pod.claim and row.claim.pod == wanted), None)


def claim_amounts(shares: tuple[Share, ...], gpus: list[Gpu], name: str) -> dict[str, int]:
    """Return the fields of one claim: the same on each of its GPUs. Raises NotAsItRuns."""
    parts = {
        (
            max(share.core_request, LEAST_CORE),
            share.core_limit,
            max(gpu.memory_mib if share.memory_mib is None else share.memory_mib, 1),
        )
        for share, gpu in zip(shares, gpus, strict=True)
    }
    if len(parts) > 1 or len({gpu.pk for gpu in gpus}) < len(gpus):
        raise placing.NotAsItRuns(f"Container {name} holds unequal parts of several GPUs, or several of one.")
    core_request, core_limit, memory_mib = parts.pop()
    return {
        "gpu_count": len(gpus),
        "core_request": core_request,
        "core_limit": max(core_limit, core_request),
        "memory_mib": memory_mib,
    }
