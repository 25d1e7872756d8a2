"""GPUs in MIG mode of a cluster's pool, and the memory slices that are not kube-scheduler's to give."""

from django.utils import timezone

from apps.clusters.dra.devices import taints_of
from apps.clusters.dra.partitions import MigDevice
from apps.clusters.models import Cluster, DeviceClaim
from apps.nodes.models import Gpu
from apps.nodes.models.node import FRESH
from apps.quotas.models.pool import MigInstances
from apps.scheduling.models import Assignment, ClaimState
from apps.scheduling.services.fleet.devices import mig_state


def read(cluster: Cluster) -> dict[str, list[MigDevice]]:
    """Return the GPUs by the node's name in Kubernetes. Two queries, of which the second only if there are any."""
    rows = Gpu.objects.filter(node__pool=cluster.pool, node__dra=True, present=True, mig__isnull=False)
    gpus = list(rows.exclude(node__kubernetes_node="").select_related("node").order_by("node_id", "index"))
    used = _used_by_others(cluster, [gpu.pk for gpu in gpus]) if gpus else {}
    late = timezone.now() - FRESH
    found: dict[str, list[MigDevice]] = {}
    for gpu in gpus:
        node = gpu.node
        mig = mig_state(gpu.mig, used.get(gpu.pk, 0), ready=True, static=cluster.pool.mig == MigInstances.STATIC)
        assert mig is not None
        taints = taints_of(
            gpu.unhealthy or node.unhealthy,
            gpu.cordoned or node.cordoned,
            node.fenced_at is not None,
            node.draining_at is not None,
            node.last_seen_at is None or node.last_seen_at < late,
        )
        device = MigDevice(gpu.uuid, gpu.index, gpu.model, node.driver_version, cluster.pool.name, mig, taints)
        found.setdefault(node.kubernetes_node, []).append(device)
    return found


def _used_by_others(cluster: Cluster, gpus: list[int]) -> dict[int, int]:
    """Return the slices of instances that kube-scheduler does not count itself, a bit each, by GPU."""
    counted = DeviceClaim.objects.live().filter(cluster=cluster, claim__isnull=False).exclude(node_name="")
    counted = counted.exclude(claim__state__in=(ClaimState.ALLOCATING, ClaimState.RELEASED))
    rows = Assignment.objects.live().filter(gpu__in=gpus, mig_start__isnull=False)
    rows = rows.exclude(claim__in=counted.values("claim"))
    used: dict[int, int] = {}
    for gpu, start, size in rows.values_list("gpu_id", "mig_start", "mig_size"):
        used[gpu] = used.get(gpu, 0) | ((1 << (size or 0)) - 1) << (start or 0)
    return used
