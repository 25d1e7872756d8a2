"""Placement of pods by the pool's policy and the ledger, within their tenants' quotas.

Everything is tried in a transaction and rolled back: a pod is charged once Kubernetes has bound it. Until then its
promise stands in the ledger or, if another extender chose, in its annotations only; those are subtracted from free
capacity, of its GPUs and of its tenant's quota. A GPU never has more free than the annotations of all pods leave.
Reserved capacity, for whatever time, is not available to pods: pods have no time limit.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from django.db import transaction

from apps.clusters.core.gpu_admission import WHOLE, Chosen, ContainerRequest, View
from apps.clusters.formats.gpu_manager import UNIT_MIB
from apps.clusters.formats.wishes import selection_of
from apps.clusters.kube.client import Client
from apps.clusters.kube.client import Refused as RefusedByCluster
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.pods import PodState
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, outside
from apps.nodes.models import Node
from apps.quotas.models import Tenant
from apps.quotas.services import charging
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, Placed, Refused, Request
from apps.scheduling.models.share import amounts
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes, with_placement
from gpucloud.errors import GpucloudError


class ByLedger:
    """Chooser for the pods of one cluster."""

    def __init__(self, cluster: Cluster, client: Client, mirror: Mirror) -> None:
        self._key, self._client, self._mirror = cluster.pk, client, mirror
        # Pods found in the ledger: they are not queried again.
        self._written: set[str] = set()

    def __call__(self, pod: PodState, names: list[str]) -> tuple[str, Chosen] | str:
        """Return one of these nodes and the pod's GPUs there, or the reason why there is none."""
        try:
            cluster = Cluster.objects.select_related("pool").get(pk=self._key)
            with transaction.atomic():
                try:
                    # Read before the ledger: a pod that is recorded meanwhile counts twice rather than never.
                    unwritten = self._unwritten(cluster, pod)
                    self._refuse(cluster, pod, unwritten)
                    return self._place(cluster, pod, names, unwritten)
                finally:
                    transaction.set_rollback(True)
        except GpucloudError as error:
            return error.detail

    def _unwritten(self, cluster: Cluster, asking: PodState) -> list[PodState]:
        """Return other pods with GPUs but without a claim: just chosen for or bound, or impossible to record."""
        there = [pod for pod in self._mirror.pods_with_gpus() if pod.key != asking.key]
        uids = {pod.uid for pod in there}
        self._written &= uids
        if unknown := uids - self._written:
            rows = PodClaim.objects.live().filter(cluster=cluster, claim__isnull=False, pod_uid__in=unknown)
            self._written.update(rows.values_list("pod_uid", flat=True))
        return [pod for pod in there if pod.uid not in self._written]

    def _refuse(self, cluster: Cluster, pod: PodState, unwritten: list[PodState]) -> None:
        """Raise what creating a claim for the pod would raise: quota, budget, ranges; and Unbound."""
        tenant, whole_mib = self._tenant(cluster, pod.namespace), self._memory_of_a_gpu(cluster)
        due: Counter[str] = Counter()
        for namespace, pods in _by_namespace(unwritten).items():
            if self._is_payer(cluster, namespace, tenant):
                for item in pods:
                    for _, asked in _gpu_requests(item):
                        due.update(_charged_amounts(_request(asked, whole_mib)))
        # Several charges follow in one transaction.
        charging.lock_quotas_of(tenant, pool=cluster.pool)
        context = charging.ChargeContext(cluster.principal, tenant, cluster.pool, uuid.uuid4())
        charging.charge(context, amounts=due)
        for _, asked in _gpu_requests(pod):
            request = _request(asked, whole_mib)
            lifecycle.create_claim(
                principal=cluster.principal,
                spec=ClaimSpec(
                    tenant=tenant,
                    pool=cluster.pool,
                    name=f"{pod.namespace}/{pod.name}"[:200],
                    gpu_count=request.gpu_count,
                    core_request=request.core_request,
                    core_limit=request.core_request,
                    memory_mib=request.memory_mib,
                ),
            )

    def _is_payer(self, cluster: Cluster, namespace: str, tenant: Tenant) -> bool:
        try:
            return self._tenant(cluster, namespace) == tenant
        except (bindings.Unbound, RefusedByCluster):  # not bound to a tenant, or being removed
            return False

    def _tenant(self, cluster: Cluster, namespace: str) -> Tenant:
        return bindings.payer(cluster, namespace, lambda: self._client.labels_of(namespace))

    def _memory_of_a_gpu(self, cluster: Cluster) -> int:
        """Return the smallest GPU's memory: a whole GPU is charged at least this much."""
        return min((gpu.memory_mib for gpu in read_fleet(cluster.pool)), default=1)

    def _place(
        self, cluster: Cluster, pod: PodState, names: list[str], unwritten: list[PodState]
    ) -> tuple[str, Chosen] | str:
        called, held = _kubernetes_names(cluster, names), outside.holds_of(cluster)
        # Promises in the ledger are not free there; the pod's own earlier promise is free for it.
        promised, own = _taken_by(one for one in unwritten if one.uid not in held), held.get(pod.uid, {})
        reserved = outside.reserved_amounts(cluster.pool)
        selection = selection_of(pod.annotations)
        fleet = [
            self._with_promises(_with_own(gpu, own), called[gpu.node], pod, promised, reserved.get(gpu.uuid, (0, 0)))
            for gpu in read_fleet(cluster.pool)
            if gpu.node in called and selection.accepts(gpu.model, gpu.uuid)
        ]
        policy, why = str(cluster.pool.placement_policy), "No node of the pool is among these."
        if selection:
            why = f"No node of the pool that is among these has a GPU of {selection}."
        placed = partial(place, nodes=read_nodes(cluster.pool), policy=policy, held=reserved)
        while fleet:
            found = _on_one_node(fleet, pod, placed)
            if isinstance(found, Refused):
                return "; ".join(reason.detail for reason in found.reasons)
            node, chosen = found
            if chosen is not None:
                return called[node], chosen
            why = f"Node {called[node]} has room for some of the pod's containers only."
            fleet = [gpu for gpu in fleet if gpu.node != node]
        return why

    def _with_promises(
        self, gpu: GpuState, name: str, pod: PodState, unwritten: "Taken", reserved: tuple[int, int]
    ) -> GpuState:
        """Return the GPU with its free capacity reduced by promises in annotations.

        The core subtracts reserved capacity, which the view has subtracted already, so it is added back here.
        """
        core, memory = self._mirror.capacity(name) or (0, 0)
        view: View = self._mirror.view(name, core, memory, but=pod.key)
        if gpu.index >= view.count:
            return replace(gpu, schedulable=False)
        taken_core, taken_units = unwritten.get((name, gpu.index), (0, 0))
        taken_mib = gpu.memory_mib if taken_core >= WHOLE else taken_units * UNIT_MIB
        return replace(
            gpu,
            core_free=max(0, min(gpu.core_free - taken_core, view.core_free[gpu.index] + reserved[0])),
            # Annotations do not contain a part of a unit.
            memory_free_mib=max(0, min(gpu.memory_free_mib - taken_mib, _mib(view, gpu) + reserved[1])),
        )


def _with_own(gpu: GpuState, own: Mapping[str, tuple[int, int]]) -> GpuState:
    core, memory_mib = own.get(gpu.uuid, (0, 0))
    return gpu.with_more(core, memory_mib)


# Core and units of memory, by the cluster's name of a node and the GPU's index there.
Taken = Mapping[tuple[str, int], tuple[int, int]]


def _taken_by(pods: Iterable[PodState]) -> Taken:
    promised: dict[tuple[str, int], tuple[int, int]] = {}
    for pod in pods:
        for share in pod.shares:
            core, units = promised.get((pod.counts_on, share.index), (0, 0))
            promised[pod.counts_on, share.index] = core + share.core, units + share.memory
    return promised


def _by_namespace(pods: Iterable[PodState]) -> Mapping[str, list[PodState]]:
    found: dict[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        found[pod.namespace].append(pod)
    return found


def _charged_amounts(request: Request) -> dict[str, int]:
    return amounts(gpu_count=request.gpu_count, core=request.core_request, memory_mib=request.memory_mib)


def _mib(view: View, gpu: GpuState) -> int:
    used = (view.memory_each - view.memory_free[gpu.index]) * UNIT_MIB
    return gpu.memory_mib - used


def _gpu_requests(pod: PodState) -> list[tuple[int, ContainerRequest]]:
    return [(place_, item) for place_, item in enumerate(pod.containers) if item.wants_gpu]


def _request(asked: ContainerRequest, whole_mib: int) -> Request:
    if asked.core >= WHOLE:
        return Request(asked.core // WHOLE, WHOLE, whole_mib)
    return Request(1, asked.core, asked.memory * UNIT_MIB)


def _kubernetes_names(cluster: Cluster, names: list[str]) -> dict[str, str]:
    """Return the Kubernetes name of each of the pool's nodes among `names`, by its name here."""
    wanted = set(names)
    rows = Node.objects.filter(pool=cluster.pool).values_list("name", "kubernetes_node")
    return {ours: theirs or ours for ours, theirs in rows if (theirs or ours) in wanted}


def _on_one_node(
    fleet: list[GpuState], pod: PodState, placed: Callable[[Iterable[GpuState], Request], Placed | Refused]
) -> tuple[str, Chosen | None] | Refused:
    """Return the node of the first container and the GPUs of all containers there; None if not all fit."""
    gpus, node, chosen = {gpu.uuid: gpu for gpu in fleet}, "", dict[int, tuple[int, ...]]()
    for place_, asked in _gpu_requests(pod):
        # A whole GPU takes all its memory, which any wholly free GPU has.
        request = _request(asked, 1)
        answer = placed(gpus.values(), request)
        if not isinstance(answer, Placed):
            return (node, None) if node else answer
        chosen[place_] = tuple(sorted(gpus[uuid].index for uuid in answer.gpus))
        gpus = with_placement(gpus, answer, request)
        node = gpus[answer.gpus[0]].node
        gpus = {uuid: gpu for uuid, gpu in gpus.items() if gpu.node == node}
    return node, chosen
