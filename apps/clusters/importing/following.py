"""Running pods in the ledger: every bound pod with GPUs becomes claims and returns them when it ends.

A pod is charged after Kubernetes has bound it, so it can only be recorded here, not refused. If recording fails (the
namespace is not bound to a tenant, the quota has no room, the node is unknown), the reason stands beside the pod and
recording is retried; the pod runs on, and its GPU use is unavailable to others (`services.outside`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.utils import timezone

from apps.clusters.core import gpu_admission
from apps.clusters.formats import BY_NAME, RESOURCES, pods
from apps.clusters.formats.asks import LEAST_CORE, Share
from apps.clusters.importing import batches
from apps.clusters.importing.containers import gpu_of
from apps.clusters.importing.plan import PodWanted, Snapshot, plan
from apps.clusters.importing.taking import hold
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, outside, placing
from apps.quotas.models import Tenant
from apps.scheduling.services.claims import lifecycle
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)
Pod = Mapping[str, Any]


def follow(*, cluster: Cluster, pod: Pod, labels: Mapping[str, str]) -> None:
    """Bring the ledger in step with one live pod, whose namespace has these labels. Repeatable."""
    if not pods.node_of(pod):
        return
    found = plan(Snapshot(pods=[pod]), gpushare_unit_mib=settings.GPUSHARE_UNIT_MIB)
    for wanted in found.pods:
        _end_former(cluster, wanted)
        if BY_NAME[wanted.format].IMPORTED_ONLY and not _is_recorded(cluster, wanted):
            _note(cluster, pod, f"A pod of {wanted.format} counts once an import of the cluster has taken it.")
            outside.drop(cluster=cluster, pod_uid=wanted.uid)
            continue
        try:
            _hold(cluster, wanted, labels)
        except GpucloudError as error:
            _note(cluster, pod, error.detail, wanted.shares)
            outside.keep(cluster=cluster, pod_uid=wanted.uid, parts=_parts(cluster, wanted))
        except IntegrityError:
            # An importer recorded it first; the next pass finds its claims.
            _note(cluster, pod, "Another process was recording it at the same time.")
    if not found.pods and found.left:
        _note(cluster, pod, found.left[0].why)


def follow_many(*, cluster: Cluster, found: Iterable[tuple[Pod, Mapping[str, str]]]) -> list[Pod]:
    """Bring the ledger in step with many live pods, given with the labels of their namespaces.

    Return the pods for which `follow` is to be called: those that cannot be recorded together with others.
    """
    of, alone = _by_tenant(cluster, found)
    for tenant, mine in of:
        try:
            rest = batches.record(cluster=cluster, tenant=tenant, pods=[wanted for wanted, _ in mine])
        except (InterfaceError, OperationalError):
            raise
        except Exception:
            logger.exception("%d pods of cluster %s are recorded one by one", len(mine), cluster.name)
            rest = [wanted for wanted, _ in mine]
        uids = {wanted.uid for wanted in rest}
        alone += [pod for wanted, pod in mine if wanted.uid in uids]
    return alone


def _by_tenant(
    cluster: Cluster, found: Iterable[tuple[Pod, Mapping[str, str]]]
) -> tuple[list[tuple[Tenant, list[tuple[PodWanted, Pod]]]], list[Pod]]:
    """Return the bound pods that hold GPUs by the tenant that pays, and those that are to be looked at one by one."""
    bound = list(cluster.bindings.select_related("tenant"))
    of: dict[int, tuple[Tenant, list[tuple[PodWanted, Pod]]]] = {}
    alone: list[Pod] = []
    for pod, labels in found:
        if not pods.node_of(pod):
            continue
        try:
            planned = plan(Snapshot(pods=[pod]), gpushare_unit_mib=settings.GPUSHARE_UNIT_MIB)
            wanted = planned.pods[0] if planned.pods else None
            tenant = None if wanted is None else bindings.tenant_of(bound, wanted.namespace, dict(labels))
        except Exception:  # noqa: BLE001 - a malformed pod fails by itself, and is then named
            alone.append(pod)
            continue
        if wanted is None or tenant is None or BY_NAME[wanted.format].IMPORTED_ONLY:
            alone += [pod] if planned.pods or planned.left else []
        else:
            of.setdefault(tenant.pk, (tenant, []))[1].append((wanted, pod))
    return list(of.values()), alone


def _end_former(cluster: Cluster, wanted: PodWanted) -> None:
    """End an earlier pod of the same name: a name belongs to one pod at a time."""
    former = PodClaim.objects.live().filter(cluster=cluster, namespace=wanted.namespace, pod=wanted.name)
    uids = former.exclude(pod_uid=wanted.uid).order_by("pod_uid").values_list("pod_uid", flat=True).distinct()
    for uid in list(uids):
        end(cluster=cluster, pod_uid=uid, why="another pod has its name by now")


def _hold(cluster: Cluster, wanted: PodWanted, labels: Mapping[str, str]) -> None:
    if _is_recorded(cluster, wanted):
        outside.drop(cluster=cluster, pod_uid=wanted.uid)
        return
    tenant = bindings.payer(cluster, wanted.namespace, lambda: labels)
    hold(wanted, tenant=tenant, principal=cluster.principal, cluster=cluster)


def _is_recorded(cluster: Cluster, wanted: PodWanted) -> bool:
    """Return True if every container of the pod has its claim."""
    rows = PodClaim.objects.live().filter(cluster=cluster, pod_uid=wanted.uid)
    return rows.exists() and not rows.filter(claim=None).exists()


def _parts(cluster: Cluster, wanted: PodWanted) -> outside.Parts:
    """Return the pod's use of known GPUs; unknown nodes and GPUs are skipped."""
    parts: dict[int, tuple[int, int]] = {}
    for share in wanted.shares:
        try:
            gpu = gpu_of(share, placing.node_of(cluster.pool, wanted.node))
        except placing.NotAsItRuns:
            continue
        core, memory_mib = parts.get(gpu.pk, (0, 0))
        more_mib = gpu.memory_mib if share.memory_mib is None else share.memory_mib
        parts[gpu.pk] = core + max(share.core_request, LEAST_CORE), memory_mib + more_mib
    return parts


def _note(cluster: Cluster, pod: Pod, why: str, shares: Sequence[Share] = ()) -> None:
    """Record beside each container that asks for GPUs why it has no claim; containers with a claim keep it."""
    meta, annotations = pod.get("metadata") or {}, pods.annotations(pod)
    for place, container in _asking(pod):
        mine = [share for share in shares if share.container == container.get("name")]
        values = {
            "namespace": str(meta.get("namespace"))[:63],
            "pod": str(meta.get("name"))[:253],
            "container_index": place,
            "node_name": (pods.node_of(pod) or annotations.get(gpu_admission.NODE, ""))[:253],
            "core": sum(share.core_request for share in mine),
            "memory_mib": sum(share.memory_mib or 0 for share in mine),
            "gpu_indexes": _annotated_indexes(pod, place),
        }
        key = {"cluster": cluster, "pod_uid": str(meta.get("uid")), "container": str(container.get("name"))}
        row, made = PodClaim.objects.get_or_create(**key, defaults={**values, "problem": why[:2000]})
        if not made and row.claim_id is None and row.problem != why[:2000]:
            row.change(problem=why[:2000])


def _asking(pod: Pod) -> list[tuple[int, pods.Container]]:
    """Return the containers that name a resource of a format; the first one if the pod as a whole asks."""
    every = list(enumerate(pods.lasting_containers(pod)))
    named = [
        (place, container)
        for place, container in every
        if any(name in RESOURCES for kind in ("limits", "requests") for name in pods.resources(container, kind))
    ]
    return named or every[:1]


def _annotated_indexes(pod: Pod, place: int) -> list[int]:
    """Return the plausible GPU indexes of the annotation: anyone may have written it."""
    named = gpu_admission.indexes(pods.annotations(pod), place)
    return [index for index in named if 0 <= index <= pods.MOST][: gpu_admission.MOST_GPUS]


def end(*, cluster: Cluster, pod_uid: str, why: str = "its pod has ended") -> int:
    """Return what the pod held to the ledger; return the number of containers. Repeatable."""
    ended = 0
    for key in (
        PodClaim.objects.live().filter(cluster=cluster, pod_uid=pod_uid).order_by("pk").values_list("pk", flat=True)
    ):
        ended += _end(key, cluster, why)
    outside.drop(cluster=cluster, pod_uid=pod_uid)
    return ended


@transaction.atomic
def _end(key: int, cluster: Cluster, why: str) -> int:
    # Order of locks: claims first.
    row = PodClaim.objects.select_related("claim").get(pk=key)
    if row.claim is not None:
        lifecycle.release_claim(principal=cluster.principal, claim=row.claim, why=why)
    row = PodClaim.objects.select_for_update(of=("self",)).get(pk=key)
    if row.ended_at is not None:
        return 0
    row.change(ended_at=timezone.now())
    return 1


def end_others(*, cluster: Cluster, live: Iterable[str], is_there: Callable[[PodClaim], bool]) -> int:
    """End pods that disappeared while nobody watched; return the number of containers.

    The list may be outdated and other processes record pods too, so `is_there` confirms each pod outside of `live`.
    Raises what `is_there` raises.
    """
    rows = PodClaim.objects.live().filter(cluster=cluster).exclude(pod_uid__in=list(live)).order_by("pk")
    gone = (row for row in {row.pod_uid: row for row in rows}.values() if not is_there(row))
    why = "its pod no longer existed in the cluster"
    return sum(end(cluster=cluster, pod_uid=row.pod_uid, why=why) for row in gone)


def forget_promises(*, cluster: Cluster, pods_there: Iterable[Pod]) -> None:
    """Free promises to pods that are gone or were never annotated, and list those that last. Repeatable.

    A promised GPU is not free for others, so its pod has a row as soon as the promise has stood for a while.
    """
    there = list(pods_there)
    promised = {
        str(pod["metadata"]["uid"]): pod
        for pod in there
        if not pods.node_of(pod) and pods.annotations(pod).get(gpu_admission.NODE)
    }
    bound = [str(pod["metadata"]["uid"]) for pod in there if pods.node_of(pod)]
    outside.drop_others(cluster=cluster, live=[*bound, *promised])
    lasting = outside.settled(cluster, among=promised)
    for uid, since in lasting.items():
        _note(cluster, promised[uid], f"Its GPUs are promised to it since {since:%H:%M} UTC; it is not bound yet.")
    unbound = {str(pod["metadata"]["uid"]) for pod in there if not pods.node_of(pod)}
    PodClaim.objects.live().filter(cluster=cluster, claim=None, pod_uid__in=unbound - lasting.keys()).delete()
