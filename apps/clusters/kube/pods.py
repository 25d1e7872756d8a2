"""Pods as decisions use them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from apps.clusters.core import quantities
from apps.clusters.core.gpu_admission import (
    CORE,
    MEMORY,
    NODE,
    OVER,
    Chosen,
    ContainerRequest,
    HeldShare,
    held_shares,
    wants_gpu,
)
from apps.clusters.core.gpu_admission import annotations as written
from apps.clusters.formats.pods import SIDECAR
from apps.clusters.kube.objects import Amounts, Container, Node, Pod

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PodState:
    """State of a pod for decisions. `counts_on`: the node whose GPUs it holds, bound there or only chosen.

    `containers` and `names`: those that last as long as the pod, sidecars after `spec.containers`.
    """

    namespace: str
    name: str
    uid: str
    version: int
    containers: tuple[ContainerRequest, ...]
    names: tuple[str, ...]
    annotations: Mapping[str, str]
    bound_to: str
    priority: int
    over: bool
    counts_on: str
    shares: tuple[HeldShare, ...] = field(default=())

    @property
    def key(self) -> Key:
        """Key within the cluster: namespace and name."""
        return self.namespace, self.name

    @property
    def wants_gpu(self) -> bool:
        """True if gpu-admission places the pod."""
        return wants_gpu(self.containers)


def parse_pod(pod: Pod, *, sidecars: bool = True) -> PodState:
    """Return the state of a pod; without its sidecars, as gpu-admission sees it, if told so. Raises NotAQuantity."""
    meta, annotations = pod.metadata, pod.metadata.annotations or {}
    lasting = list(pod.spec.containers or ())
    if sidecars:
        lasting += [one for one in pod.spec.init_containers or () if one.restart_policy == SIDECAR]
    containers = tuple(gpu_request(container) for container in lasting)
    over = pod.status.phase in OVER
    return PodState(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=int(meta.resource_version) if meta.resource_version.isdecimal() else 0,
        containers=containers,
        names=tuple(container.name for container in lasting),
        annotations=annotations,
        bound_to=pod.spec.node_name,
        priority=pod.spec.priority or 0,
        over=over,
        counts_on="" if over else pod.spec.node_name or annotations.get(NODE, ""),
        shares=held_shares(containers, annotations),
    )


def chosen_for(pod: PodState, node: str, chosen: Chosen) -> PodState:
    """Return the pod as it is once these GPUs are written to it."""
    annotations = {**pod.annotations, **written(node, chosen, time_ns=0)}
    return replace(pod, annotations=annotations, counts_on=node, shares=held_shares(pod.containers, annotations))


def gpu_request(container: Container) -> ContainerRequest:
    """Return the container's limits. Raises NotAQuantity."""
    limits = container.resources.limits or {}
    return ContainerRequest(amount(limits, CORE), amount(limits, MEMORY))


def amount(amounts: Amounts | None, name: str) -> int:
    """Return the amount of a resource; 0 if absent. Raises NotAQuantity."""
    return quantities.value((amounts or {}).get(name, 0))


def capacity(node: Node) -> tuple[int, int]:
    """Return a node's core and memory units. Raises NotAQuantity."""
    return amount(node.status.capacity, CORE), amount(node.status.capacity, MEMORY)
