"""What pods take of GPUs without a claim, and what others hold of the GPUs that pods are chosen for.

A pod that is bound uses its GPUs, also where the books do not bear it: nobody pays, a quota is full, or the GPU is. And
a pod that the extender has chosen GPUs for will use them in a moment. Until a claim stands for the pod its parts are
rows, by pod and GPU, and their sum stands on the GPU, where placement reads it. Who writes has the GPUs locked: so a
claim and a pod that come at once cannot both be promised the same piece.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from apps.clusters.models import Cluster, PodHold
from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import FRESH
from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.scheduling.models import Assignment, AssignmentState, Claim
from apps.scheduling.services.fleet.reserved import read_reserved

# Core and MiB by the GPU's key.
Parts = Mapping[int, tuple[int, int]]
# A promise is written before the pod's annotations, and the watch hears of those a while later.
SETTLED = timedelta(seconds=60)


@transaction.atomic
def keep(*, cluster: Cluster, pod_uid: str, parts: Parts) -> None:
    """The pod takes these parts, and nothing else. Repeatable. Locks GPUs."""
    there = _parts_of(cluster, pod_uid)
    if there == parts:
        return
    gpus = _lock_gpus({*there, *parts})
    _write(cluster, pod_uid, {key: parts[key] for key in gpus if key in parts}, gpus)


@transaction.atomic
def promise(*, cluster: Cluster, pod_uid: str, parts: Parts, known: Parts) -> bool:
    """Keep what the pod was chosen for; False, and nothing is kept, where less is to be had there than was known.

    `known`: what was known of `unavailable`.
    """
    gpus = _lock_gpus({*_parts_of(cluster, pod_uid), *parts})
    now = unavailable(cluster, Q(pk__in=parts))
    for key in parts:
        core, memory_mib = known.get(key, (0, 0))
        if now.get(key, (0, 0))[0] > core or now.get(key, (0, 0))[1] > memory_mib:
            return False
    _write(cluster, pod_uid, parts, gpus)
    return True


def drop(*, cluster: Cluster, pod_uid: str) -> None:
    """The pod takes nothing without a claim. Repeatable. Locks GPUs."""
    keep(cluster=cluster, pod_uid=pod_uid, parts={})


def drop_others(*, cluster: Cluster, live: Iterable[str]) -> None:
    """Of pods that take nothing any more, as these do alone: promises that never came to anything."""
    old = PodHold.objects.filter(cluster=cluster, since__lt=timezone.now() - SETTLED)
    uids = old.exclude(pod_uid__in=list(live)).order_by("pod_uid").values_list("pod_uid", flat=True).distinct()
    for uid in list(uids):
        drop(cluster=cluster, pod_uid=uid)


@transaction.atomic
def drop_all(cluster: Cluster) -> None:
    """No pod of the cluster takes anything."""
    rows = PodHold.objects.filter(cluster=cluster)
    gpus = _lock_gpus(rows.values_list("gpu_id", flat=True))
    rows.filter(gpu__in=gpus).delete()
    _count(gpus)


def holds_of(cluster: Cluster) -> dict[str, dict[str, tuple[int, int]]]:
    """What stands for the cluster's pods: core and MiB, by pod's and GPU's uid."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    rows = PodHold.objects.filter(cluster=cluster).values_list("pod_uid", "gpu__uuid", "core", "memory_mib")
    for pod_uid, gpu, core, memory_mib in rows:
        found.setdefault(pod_uid, {})[gpu] = core, memory_mib
    return found


def unavailable(cluster: Cluster, gpus: Q) -> dict[int, tuple[int, int]]:
    """What of these GPUs (a filter of them) no new pod of the cluster may count on: core and MiB, by key.

    What others have, what is reserved, and the whole of GPUs that take no claims. A pod that was sent there would get
    no claim, and so never begin. A node may close after this: nobody who closes one waits for pods.
    """
    found = of_others(cluster, Q(gpu__in=Gpu.objects.filter(gpus)))
    if rooms := reserved_amounts(cluster.pool, gpus):
        for key, uuid in Gpu.objects.filter(gpus, uuid__in=rooms).values_list("pk", "uuid"):
            core, memory_mib = found.get(key, (0, 0))
            found[key] = core + rooms[uuid][0], memory_mib + rooms[uuid][1]
    shut = Gpu.objects.filter(gpus, _takes_no_claims()).values_list("pk", "memory_mib")
    return found | {key: (WHOLE, memory_mib) for key, memory_mib in shut}


def reserved_amounts(pool: Pool, gpus: Q | None = None) -> Mapping[str, tuple[int, int]]:
    """Core and MiB by GPU's uid that no pod may count on of what is free: a pod has no end, and reservations begin."""
    return read_reserved(pool, now=timezone.now(), which=gpus).held(Claim(pool=pool), list)


def _takes_no_claims() -> Q:
    """Of GPUs: as commits have it."""
    heard = timezone.now() - FRESH
    ready = Q(node__last_seen_at__gt=heard, node__cordoned=False, node__fenced_at=None, node__unhealthy="")
    # Where a GPU was replaced, its index is the other one's.
    instead = Gpu.objects.filter(node=OuterRef("node"), index=OuterRef("index"), present=True)
    return (Q(present=True) & ~(ready & Q(unhealthy=""))) | (Q(present=False) & Q(~Exists(instead)))


def of_others(cluster: Cluster, which: Q) -> dict[int, tuple[int, int]]:
    """What claims that are no pod's of this cluster, and other clusters' pods, have of these GPUs, by key.

    `which` is of rows with a `gpu`. What the cluster's own pods have is told by their annotations.
    """
    claims = Assignment.objects.filter(which).exclude(state=AssignmentState.RELEASED)
    claims = claims.exclude(claim__container__cluster=cluster)
    pods = PodHold.objects.filter(which).exclude(cluster=cluster)
    found = _sums(claims, "held_core", "held_memory_mib")
    for gpu, (core, memory_mib) in _sums(pods, "core", "memory_mib").items():
        before = found.get(gpu, (0, 0))
        found[gpu] = before[0] + core, before[1] + memory_mib
    return found


def _sums(rows: QuerySet[Any], core: str, memory_mib: str) -> dict[int, tuple[int, int]]:
    summed: Any = rows.order_by().values("gpu").annotate(cores=Sum(core), mib=Sum(memory_mib))
    return {gpu: (cores, mib) for gpu, cores, mib in summed.values_list("gpu", "cores", "mib")}


def _parts_of(cluster: Cluster, pod_uid: str) -> dict[int, tuple[int, int]]:
    rows = PodHold.objects.filter(cluster=cluster, pod_uid=pod_uid).values_list("gpu_id", "core", "memory_mib")
    return {gpu: (core, memory_mib) for gpu, core, memory_mib in rows}


def _lock_gpus(keys: Iterable[int]) -> list[int]:
    gpus = Gpu.objects.select_for_update(no_key=True).filter(pk__in=keys).order_by("pk")
    return list(gpus.values_list("pk", flat=True))


def _write(cluster: Cluster, pod_uid: str, parts: Parts, gpus: list[int]) -> None:
    # Of locked GPUs only. What somebody else wrote of this pod meanwhile is put right at the next look at it.
    PodHold.objects.filter(cluster=cluster, pod_uid=pod_uid, gpu__in=gpus).delete()
    PodHold.objects.bulk_create(
        PodHold(cluster=cluster, pod_uid=pod_uid, gpu_id=key, core=core, memory_mib=memory_mib)
        for key, (core, memory_mib) in sorted(parts.items())
    )
    _count(gpus)


def _count(gpus: list[int]) -> None:
    found = _sums(PodHold.objects.filter(gpu__in=gpus), "core", "memory_mib")
    capacity.set_outside({key: found.get(key, (0, 0)) for key in gpus})
