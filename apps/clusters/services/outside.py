"""GPU use of pods without a claim, and the capacity that is unavailable to pods.

A bound pod uses its GPUs even if the ledger cannot record it: no tenant pays, a quota is full, or the GPU is. A pod for
which the extender has chosen GPUs will use them in a moment. Until the pod has a claim its parts are rows by pod and
GPU, and their sum stands on the GPU, where placement reads it. Writers lock the GPUs, so a claim and a pod that arrive
together cannot both be promised the same capacity.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
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
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.fleet.reserved import read_reserved

# Core and MiB by the GPU's key.
Parts = Mapping[int, tuple[int, int]]
# Core and MiB of a GPU that the annotations of a pod show, by the pod's uid and the GPU's index; None: ask not.
Shown = Callable[[str, int], tuple[int, int] | None]
# A promise is written before the pod's annotations, and the watch reports those a while later.
SETTLED = timedelta(seconds=60)


@transaction.atomic
def keep(*, cluster: Cluster, pod_uid: str, parts: Parts) -> None:
    """Set the pod's parts to exactly these. Repeatable. Locks GPUs."""
    there = _parts_of(cluster, pod_uid)
    if there == parts:
        return
    gpus = _lock_gpus({*there, *parts})
    _write(cluster, pod_uid, {key: parts[key] for key in gpus if key in parts}, gpus)


@transaction.atomic
def promise(*, cluster: Cluster, pod_uid: str, parts: Parts, known: Parts, shown: Shown) -> bool:
    """Keep the parts that the pod was chosen for; return False and keep nothing if less is available than known.

    `known`: the sums of the earlier results of `unavailable` and of `grown`, by its `shown`, without this pod.
    """
    gpus = _lock_gpus({*_parts_of(cluster, pod_uid), *parts})
    now = unavailable(cluster, Q(pk__in=parts))
    for key, pods in grown(cluster, Q(gpu__in=parts), shown).items():
        for core, memory_mib in (more for uid, more in pods.items() if uid != pod_uid):
            before = now.get(key, (0, 0))
            now[key] = before[0] + core, before[1] + memory_mib
    for key in parts:
        core, memory_mib = known.get(key, (0, 0))
        if now.get(key, (0, 0))[0] > core or now.get(key, (0, 0))[1] > memory_mib:
            return False
    _write(cluster, pod_uid, parts, gpus)
    return True


def drop(*, cluster: Cluster, pod_uid: str) -> None:
    """Remove the pod's parts. Repeatable. Locks GPUs."""
    keep(cluster=cluster, pod_uid=pod_uid, parts={})


@transaction.atomic
def drop_many(*, cluster: Cluster, pod_uids: Collection[str], gpus: Iterable[int] = ()) -> None:
    """Remove the parts of these pods. Repeatable. Locks their GPUs, and `gpus`, which the caller locks next."""
    rows = PodHold.objects.filter(cluster=cluster, pod_uid__in=pod_uids)
    if held := set(rows.values_list("gpu_id", flat=True)):
        locked = _lock_gpus({*held, *gpus})
        rows.filter(gpu__in=locked).delete()
        _count([key for key in locked if key in held])


def drop_others(*, cluster: Cluster, live: Iterable[str]) -> None:
    """Remove the settled parts of all pods but `live`: promises without a result."""
    old = PodHold.objects.filter(cluster=cluster, since__lt=timezone.now() - SETTLED)
    uids = old.exclude(pod_uid__in=list(live)).order_by("pod_uid").values_list("pod_uid", flat=True).distinct()
    for uid in list(uids):
        drop(cluster=cluster, pod_uid=uid)


def settled(cluster: Cluster, *, among: Iterable[str]) -> dict[str, datetime]:
    """Return since when each of these pods holds parts, if it has for a while."""
    rows = PodHold.objects.filter(cluster=cluster, pod_uid__in=list(among), since__lt=timezone.now() - SETTLED)
    return dict(rows.order_by("-since").values_list("pod_uid", "since"))


@transaction.atomic
def drop_all(cluster: Cluster) -> None:
    """Remove the parts of all pods of the cluster."""
    rows = PodHold.objects.filter(cluster=cluster)
    gpus = _lock_gpus(rows.values_list("gpu_id", flat=True))
    rows.filter(gpu__in=gpus).delete()
    _count(gpus)


def holds_of(cluster: Cluster) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the parts of the cluster's pods: core and MiB, by uid of pod and GPU."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    rows = PodHold.objects.filter(cluster=cluster).values_list("pod_uid", "gpu__uuid", "core", "memory_mib")
    for pod_uid, gpu, core, memory_mib in rows:
        found.setdefault(pod_uid, {})[gpu] = core, memory_mib
    return found


def unavailable(cluster: Cluster, gpus: Q) -> dict[int, tuple[int, int]]:
    """Return the capacity of these GPUs (a filter) that new pods of the cluster cannot use: core and MiB, by key.

    That is the use by others, reservations, and the whole of GPUs that accept no claims: a pod there would get no
    claim, and so never start. A node may close afterwards: closing does not wait for pods.
    """
    found = of_others(cluster, Q(gpu__in=Gpu.objects.filter(gpus)))
    if rooms := reserved_amounts(cluster.pool, gpus):
        for key, uuid in Gpu.objects.filter(gpus, uuid__in=rooms).values_list("pk", "uuid"):
            core, memory_mib = found.get(key, (0, 0))
            found[key] = core + rooms[uuid][0], memory_mib + rooms[uuid][1]
    shut = Gpu.objects.filter(gpus, _takes_no_claims()).values_list("pk", "memory_mib")
    return found | {key: (WHOLE, memory_mib) for key, memory_mib in shut}


def reserved_amounts(pool: Pool, gpus: Q | None = None) -> Mapping[str, tuple[int, int]]:
    """Return the reserved part of free capacity by GPU uuid: pods have no time limit, and reservations begin."""
    return read_reserved(pool, now=timezone.now(), which=gpus).withheld_from(Claim(pool=pool), list)


def _takes_no_claims() -> Q:
    """Return the condition of GPUs that accept no claims, as commits check it."""
    heard = timezone.now() - FRESH
    ready = Q(node__last_seen_at__gt=heard, node__cordoned=False, node__fenced_at=None, node__unhealthy="")
    # If a GPU was replaced, another GPU has its index.
    instead = Gpu.objects.filter(node=OuterRef("node"), index=OuterRef("index"), present=True)
    return (Q(present=True) & ~(ready & Q(unhealthy="", cordoned=False))) | (Q(present=False) & Q(~Exists(instead)))


def of_others(cluster: Cluster, which: Q) -> dict[int, tuple[int, int]]:
    """Return the use of these GPUs by claims outside of this cluster's pods and by other clusters' pods, by key.

    `which` filters rows with a `gpu`. The annotations of the cluster's own pods show their use.
    """
    claims = Assignment.objects.filter(which).live()
    claims = claims.exclude(claim__container__cluster=cluster)
    pods = PodHold.objects.filter(which).exclude(cluster=cluster)
    found = _sums(claims, "held_core", "held_memory_mib")
    for gpu, (core, memory_mib) in _sums(pods, "core", "memory_mib").items():
        before = found.get(gpu, (0, 0))
        found[gpu] = before[0] + core, before[1] + memory_mib
    return found


def grown(cluster: Cluster, which: Q, shown: Shown) -> dict[int, dict[str, tuple[int, int]]]:
    """Return the use by the cluster's pods above what their annotations show, by GPU's key and pod's uid.

    `which` filters rows with a `gpu`. A resized pod keeps its annotations; a pod of another sharer has none of ours;
    what another extender has just promised may not be reported yet. Pods that `shown` does not know have ended.
    """
    claims = Assignment.objects.filter(which, claim__container__cluster=cluster, claim__container__ended_at=None).live()
    columns = ("gpu_id", "gpu__index", "claim__container__pod_uid", "held_core", "held_memory_mib")
    held: dict[tuple[int, int, str], tuple[int, int]] = {}
    for key, index, uid, core, memory_mib in claims.order_by().values_list(*columns):
        before = held.get((key, index, uid), (0, 0))
        held[key, index, uid] = before[0] + core, before[1] + memory_mib
    promised = PodHold.objects.filter(which, cluster=cluster).order_by()
    for key, index, uid, core, memory_mib in promised.values_list(
        "gpu_id", "gpu__index", "pod_uid", "core", "memory_mib"
    ):
        before = held.get((key, index, uid), (0, 0))
        held[key, index, uid] = max(before[0], core), max(before[1], memory_mib)
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for (key, index, uid), (core, memory_mib) in held.items():
        seen = shown(uid, index)
        if seen is not None and (core > seen[0] or memory_mib > seen[1]):
            found.setdefault(key, {})[uid] = max(0, core - seen[0]), max(0, memory_mib - seen[1])
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
    # Locked GPUs only. A concurrent write for this pod is corrected at the next pass over it.
    PodHold.objects.filter(cluster=cluster, pod_uid=pod_uid, gpu__in=gpus).delete()
    PodHold.objects.bulk_create(
        PodHold(cluster=cluster, pod_uid=pod_uid, gpu_id=key, core=core, memory_mib=memory_mib)
        for key, (core, memory_mib) in sorted(parts.items())
    )
    _count(gpus)


def _count(gpus: list[int]) -> None:
    found = _sums(PodHold.objects.filter(gpu__in=gpus), "core", "memory_mib")
    capacity.set_outside({key: found.get(key, (0, 0)) for key in gpus})
