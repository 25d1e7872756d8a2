"""GPU use of pods without a claim, and the capacity that is unavailable to pods.

A bound pod uses its GPUs even if the ledger cannot record it: no tenant pays, a quota is full, or the GPU is. A pod for
which the extender has chosen GPUs will use them in a moment. Until the pod has a claim its parts are rows by pod and
GPU, and their sum stands on the GPU, where placement reads it. Writers lock the GPUs, so a claim and a pod that arrive
together cannot both be promised the same capacity.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from apps.clusters.models import Cluster, PodHold
from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import FRESH
from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.fleet.reserved import may_withhold, read_reserved, withholds_nothing
from gpucloud.fastpath.compiled_queries import compiled_query

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


def promise(*, cluster: Cluster, pod_uid: str, parts: Parts, known: Parts, shown: Shown) -> bool:
    """Keep the parts that the pod was chosen for; return False and keep nothing if less is available than known.

    `known`: the sums of the earlier results of `unavailable` and of `grown`, by its `shown`, without this pod.
    """
    if _promise_free(cluster, pod_uid, parts):
        return True
    return _promise_known(cluster=cluster, pod_uid=pod_uid, parts=parts, known=known, shown=shown)


def _promise_free(cluster: Cluster, pod_uid: str, parts: Parts) -> bool:
    """Promise a new pod its part of one GPU in one statement, if the GPU has that much free; else promise nothing.

    This is the usual case, and kube-scheduler places no other pod meanwhile.
    """
    if len(parts) != 1:
        return False
    [(gpu, (core, memory_mib))] = parts.items()
    facts: dict[str, Any] = {"cluster": cluster.pk, "pod": pod_uid, "gpu": gpu, "core": core, "memory_mib": memory_mib}
    try:
        with connection.cursor() as cursor:
            cursor.execute(PROMISE, {**facts, "now": timezone.now()})
            if not cursor.rowcount:
                return False
    except IntegrityError:
        # Another extender, which leads no longer, was promising the pod this GPU.
        return False
    # A booking locks the GPU and counts what it finds promised. So one that did not is seen now.
    if _open_on(gpu, cluster.pool_id, timezone.now() - FRESH):
        return True
    drop(cluster=cluster, pod_uid=pod_uid)
    return False


# A pod that was promised something before gets other parts under locks.
PROMISE = f"""
WITH taken AS (
    {capacity.TAKE_OUTSIDE}
        AND NOT EXISTS (SELECT FROM clusters_podhold WHERE cluster_id = %(cluster)s AND pod_uid = %(pod)s)
    RETURNING id
)
INSERT INTO clusters_podhold (cluster_id, pod_uid, gpu_id, core, memory_mib, since)
SELECT %(cluster)s, %(pod)s, id, %(core)s, %(memory_mib)s, %(now)s FROM taken
"""  # noqa: S608


@compiled_query
def _open_on(gpu: Any, pool: Any, heard: Any) -> QuerySet[Gpu, tuple[int]]:
    """Return the GPU's key if it accepts claims and nothing of it is withheld."""
    rows = Gpu.objects.filter(~Exists(_shut(Q(pk=gpu), heard)), withholds_nothing(pool, gpu), pk=gpu)
    return rows.order_by().values_list("pk")


@transaction.atomic
def _promise_known(*, cluster: Cluster, pod_uid: str, parts: Parts, known: Parts, shown: Shown) -> bool:
    gpus = _lock_gpus({*_parts_of(cluster, pod_uid), *parts})
    for key in parts:
        now, before = _unavailable_on(cluster, key, shown, but=pod_uid), known.get(key, (0, 0))
        if now[0] > before[0] or now[1] > before[1]:
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
    return found | {key: (WHOLE, memory_mib) for key, memory_mib in _shut(gpus, timezone.now() - FRESH)}


def _unavailable_on(cluster: Cluster, gpu: int, shown: Shown, *, but: str) -> tuple[int, int]:
    """Return the sum of what `unavailable` and `grown` say of one GPU, without the pod `but`.

    By compiled queries: kube-scheduler waits for this with each pod.
    """
    if shut := _shut_on(gpu, timezone.now() - FRESH):
        found = [(WHOLE, shut[0][1])]
    elif may_withhold(cluster.pool_id, gpu):
        found = [unavailable(cluster, Q(pk=gpu)).get(gpu, (0, 0))]
    else:
        found = [*_claims_of_others_on(cluster.pk, gpu), *_holds_of_others_on(cluster.pk, gpu)]
    pods = _above_annotations(_claims_of_pods_on(cluster.pk, gpu), _holds_of_pods_on(cluster.pk, gpu), shown)
    found += [more for uid, more in pods.get(gpu, {}).items() if uid != but]
    return _total(found)


def reserved_amounts(pool: Pool, gpus: Q | None = None) -> Mapping[str, tuple[int, int]]:
    """Return the reserved part of free capacity by GPU uuid: pods have no time limit, and reservations begin."""
    return read_reserved(pool, now=timezone.now(), which=gpus).withheld_from(Claim(pool=pool), list)


def _shut(gpus: Q, heard: Any) -> QuerySet[Gpu, tuple[int, int]]:
    """Return key and memory of the GPUs that accept no claims, as commits check it; `heard`: nodes silent since."""
    ready = Q(node__last_seen_at__gt=heard, node__cordoned=False, node__fenced_at=None, node__unhealthy="")
    # If a GPU was replaced, another GPU has its index.
    instead = Gpu.objects.filter(node=OuterRef("node"), index=OuterRef("index"), present=True)
    shut = (Q(present=True) & ~(ready & Q(unhealthy="", cordoned=False))) | (Q(present=False) & Q(~Exists(instead)))
    return Gpu.objects.filter(gpus, shut).order_by().values_list("pk", "memory_mib")


@compiled_query
def _shut_on(gpu: Any, heard: Any) -> QuerySet[Gpu, tuple[int, int]]:
    return _shut(Q(pk=gpu), heard)


def of_others(cluster: Cluster, which: Q) -> dict[int, tuple[int, int]]:
    """Return the use of these GPUs by claims outside of this cluster's pods and by other clusters' pods, by key.

    `which` filters rows with a `gpu`. The annotations of the cluster's own pods show their use.
    """
    found = _sums(_claims_of_others(cluster.pk, which), "held_core", "held_memory_mib")
    for gpu, (core, memory_mib) in _sums(_holds_of_others(cluster.pk, which), "core", "memory_mib").items():
        before = found.get(gpu, (0, 0))
        found[gpu] = before[0] + core, before[1] + memory_mib
    return found


def _claims_of_others(cluster: Any, which: Q) -> QuerySet[Assignment]:
    return Assignment.objects.filter(which).live().exclude(claim__container__cluster=cluster).order_by()


def _holds_of_others(cluster: Any, which: Q) -> QuerySet[PodHold]:
    return PodHold.objects.filter(which).exclude(cluster=cluster).order_by()


@compiled_query
def _claims_of_others_on(cluster: Any, gpu: Any) -> QuerySet[Assignment, tuple[int, int]]:
    return _claims_of_others(cluster, Q(gpu=gpu)).values_list("held_core", "held_memory_mib")


@compiled_query
def _holds_of_others_on(cluster: Any, gpu: Any) -> QuerySet[PodHold, tuple[int, int]]:
    return _holds_of_others(cluster, Q(gpu=gpu)).values_list("core", "memory_mib")


def grown(cluster: Cluster, which: Q, shown: Shown) -> dict[int, dict[str, tuple[int, int]]]:
    """Return the use by the cluster's pods above what their annotations show, by GPU's key and pod's uid.

    `which` filters rows with a `gpu`. A resized pod keeps its annotations; a pod of another sharer has none of ours;
    what another extender has just promised may not be reported yet. Pods that `shown` does not know have ended.
    """
    return _above_annotations(_claims_of_pods(cluster.pk, which), _holds_of_pods(cluster.pk, which), shown)


# Key and index of the GPU, uid of the pod, core and MiB.
PodPart = tuple[int, int, str, int, int]


def _claims_of_pods(cluster: Any, which: Q) -> QuerySet[Assignment, PodPart]:
    claims = Assignment.objects.filter(which, claim__container__cluster=cluster, claim__container__ended_at=None).live()
    columns = ("gpu_id", "gpu__index", "claim__container__pod_uid", "held_core", "held_memory_mib")
    return claims.order_by().values_list(*columns)


def _holds_of_pods(cluster: Any, which: Q) -> QuerySet[PodHold, PodPart]:
    rows = PodHold.objects.filter(which, cluster=cluster).order_by()
    return rows.values_list("gpu_id", "gpu__index", "pod_uid", "core", "memory_mib")


@compiled_query
def _claims_of_pods_on(cluster: Any, gpu: Any) -> QuerySet[Assignment, PodPart]:
    return _claims_of_pods(cluster, Q(gpu=gpu))


@compiled_query
def _holds_of_pods_on(cluster: Any, gpu: Any) -> QuerySet[PodHold, PodPart]:
    return _holds_of_pods(cluster, Q(gpu=gpu))


def _above_annotations(
    claims: Iterable[PodPart], promised: Iterable[PodPart], shown: Shown
) -> dict[int, dict[str, tuple[int, int]]]:
    held: dict[tuple[int, int, str], tuple[int, int]] = {}
    for key, index, uid, core, memory_mib in claims:
        before = held.get((key, index, uid), (0, 0))
        held[key, index, uid] = before[0] + core, before[1] + memory_mib
    for key, index, uid, core, memory_mib in promised:
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


def _total(parts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    there = list(parts)
    return sum(core for core, _ in there), sum(memory_mib for _, memory_mib in there)


def _parts_of(cluster: Cluster, pod_uid: str) -> dict[int, tuple[int, int]]:
    return {gpu: (core, memory_mib) for gpu, core, memory_mib in _holds_of_pod(cluster.pk, pod_uid)}


@compiled_query
def _holds_of_pod(cluster: Any, pod_uid: Any) -> QuerySet[PodHold, tuple[int, int, int]]:
    rows = PodHold.objects.filter(cluster=cluster, pod_uid=pod_uid).order_by()
    return rows.values_list("gpu_id", "core", "memory_mib")


def _lock_gpus(keys: Iterable[int]) -> list[int]:
    wanted = list(keys)
    if len(wanted) == 1:
        return [key for (key,) in _lock_gpu(wanted[0])]
    gpus = Gpu.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
    return list(gpus.values_list("pk", flat=True))


@compiled_query
def _lock_gpu(key: Any) -> QuerySet[Gpu, tuple[int]]:
    return Gpu.objects.select_for_update(no_key=True).filter(pk=key).order_by().values_list("pk")


# Raw, because each pod waits for it: statements that Django would compile anew for each.
REMOVE = "DELETE FROM clusters_podhold WHERE cluster_id = %s AND pod_uid = %s AND gpu_id = ANY(%s)"
ADD = """
INSERT INTO clusters_podhold (cluster_id, pod_uid, gpu_id, core, memory_mib, since)
SELECT %s, %s, gpu, core, memory_mib, %s
FROM unnest(%s::bigint[], %s::integer[], %s::bigint[]) AS more (gpu, core, memory_mib)
"""


COUNT = """
SELECT gpu_id, sum(core)::integer, sum(memory_mib)::bigint FROM clusters_podhold WHERE gpu_id = ANY(%s) GROUP BY gpu_id
"""


def _write(cluster: Cluster, pod_uid: str, parts: Parts, gpus: list[int]) -> None:
    rows = [(key, *parts[key]) for key in sorted(parts)]
    with connection.cursor() as cursor:
        # Locked GPUs only. A concurrent write for this pod is corrected at the next pass over it.
        cursor.execute(REMOVE, [cluster.pk, pod_uid, gpus])
        if rows:
            columns = [[row[place] for row in rows] for place in range(3)]
            cursor.execute(ADD, [cluster.pk, pod_uid, timezone.now(), *columns])
    _count(gpus)


def _count(gpus: list[int]) -> None:
    """Set the sums of the parts on these GPUs, which are locked."""
    with connection.cursor() as cursor:
        cursor.execute(COUNT, [gpus])
        found = {gpu: (core, memory_mib) for gpu, core, memory_mib in cursor.fetchall()}
    capacity.set_outside({key: found.get(key, (0, 0)) for key in gpus})
