"""Claims of SharePods: creation, change with their annotations, release."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from apps.clusters.formats import kubeshare, pods
from apps.clusters.formats.asks import Ask, Unreadable
from apps.clusters.models import Cluster, PodClaim, SharePod
from apps.clusters.services import bindings, outside, placing
from apps.clusters.sharepods import manifests
from apps.clusters.sharepods.manifests import Place
from apps.nodes.models import Gpu
from apps.quotas.models import Tenant
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import Refused
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges, ClaimSpec
from apps.scheduling.services.fleet.devices import read_devices, read_nodes
from gpucloud.errors import Conflict

# Length of a DNS label; the spec of a SharePod has no schema that bounds it.
LONGEST_NAME = 63


class NobodyPays(Conflict, code="nobody-pays", title="The namespace is bound to no tenant"):
    """No tenant is bound to the namespace."""


class Quicker(Conflict, code="quicker", title="It has a claim already"):
    """Another controller has just created its claim."""


@transaction.atomic
def make(*, cluster: Cluster, thing: Mapping[str, Any], ask: Ask, labels: Mapping[str, str]) -> SharePod:
    """Create the claim: queued until a round places it, or placed at once if it names its node or a GPUID.

    `labels` are the namespace's. Raises Unreadable, NobodyPays, NotAsItRuns, Quicker, and what creating a claim raises.
    """
    meta, container = thing["metadata"], _container(thing)
    tenant = bindings.tenant_of(cluster.bindings.select_related("tenant"), meta["namespace"], dict(labels))
    if tenant is None:
        raise NobodyPays(f"No tenant is bound to namespace {meta['namespace']} of {cluster.name}: bind one.")
    gpu_id, node = kubeshare.gpu_id(thing), pods.node_of(thing)
    pinned = bool(gpu_id or node)
    claim = lifecycle.create_claim(
        principal=SYSTEM,
        spec=ClaimSpec(
            tenant=tenant,
            pool=cluster.pool,
            name=f"{meta['namespace']}/{meta['name']}"[:200],
            when_over_quota="refuse" if pinned else "wait",
            pod={"namespace": meta["namespace"], "name": meta["name"], "container": container},
            **ask.claim_fields(0),
        ),
    )
    if pinned:
        placing.place_on(claim, _pinned(claim, tenant, cluster, node=node, gpu_id=gpu_id))
    try:
        return SharePod.objects.create(
            cluster=cluster, uid=meta["uid"], namespace=meta["namespace"], name=meta["name"], gpu_id=gpu_id, claim=claim
        )
    except IntegrityError as error:
        raise Quicker(f"SharePod {pods.name_of(thing)} has a claim by now.") from error


def _container(thing: Mapping[str, Any]) -> str:
    """Return the container's name for the node's agent, which accepts no other. Raises Unreadable."""
    name = thing["spec"]["containers"][0]["name"]
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
        raise Unreadable(f"{pods.name_of(thing)}: its first container needs a name of 1 to {LONGEST_NAME} characters.")
    return name


@transaction.atomic
def make_again(row: SharePod, *, thing: Mapping[str, Any], ask: Ask, labels: Mapping[str, str]) -> SharePod:
    """Create a new claim for a SharePod whose claim was released, e.g. by removing its pod. Raises as `make`."""
    cluster = row.cluster
    row.delete()
    return make(cluster=cluster, thing=thing, ask=ask, labels=labels)


def _pinned(claim: Claim, tenant: Tenant, cluster: Cluster, *, node: str, gpu_id: str) -> list[Gpu]:
    """Return the scheduler's choice among the GPUs that node and GPUID leave. Raises NotAsItRuns."""
    which = Q(node=placing.node_of(cluster.pool, node)) if node else Q()
    if gpu_id and Gpu.objects.filter(uuid=gpu_id).exists():
        which &= Q(uuid=gpu_id)
    elif gpu_id:
        which &= _sharing(tenant, cluster, gpu_id)
    devices = read_devices(cluster.pool, which)
    request = lifecycle.request_of(claim)
    answer = place([device.state for device in devices], request, nodes=read_nodes(cluster.pool))
    if isinstance(answer, Refused):
        why = "; ".join(reason.detail for reason in answer.reasons) or "There is no such GPU"
        raise placing.NotAsItRuns(f"{why}.")
    return list(Gpu.objects.filter(uuid__in=answer.gpus))


def _sharing(tenant: Tenant, cluster: Cluster, gpu_id: str) -> Q:
    """Return the filter of the tenant's GPU with this GPUID; else of the GPUs without any of its GPUIDs."""
    mine = SharePod.objects.filter(cluster=cluster, claim__tenant=tenant, ended_at=None).exclude(gpu_id="")
    of_word = Gpu.objects.filter(assignments__claim__sharepod__in=mine.filter(gpu_id=gpu_id))
    of_word = of_word.exclude(assignments__state="released")
    if of_word.exists():
        return Q(pk__in=list(of_word.values_list("pk", flat=True)))
    others = Gpu.objects.filter(assignments__claim__sharepod__in=mine)
    return ~Q(pk__in=list(others.values_list("pk", flat=True)))


def follow(row: SharePod, ask: Ask) -> None:
    """Resize the claim to the present annotations while it runs. Raises what a resize raises."""
    fields = ask.claim_fields(0)
    wanted = {name: fields[name] for name in ("core_request", "core_limit", "memory_mib")}
    if wanted != lifecycle.limits(row.claim) and (row.claim.waiting or row.claim.state in PLACED):
        row.claim = resize_claim(principal=SYSTEM, claim=row.claim, changes=ClaimChanges(**wanted))


def place_of(row: SharePod) -> Place | None:
    """Return the claim's place; None while it waits."""
    if row.claim.state not in PLACED:
        return None
    gpu = _gpu_of(row)
    return None if gpu is None else Place(gpu.node.kubernetes_node or gpu.node.name, gpu.index, gpu.uuid)


def is_elsewhere(row: SharePod, pod: Mapping[str, Any], place: Place | None) -> bool:
    """Return True if the pod belongs to a former claim or to the claim's former place."""
    if pods.annotations(pod).get(pods.CLAIM, str(row.claim.uid)) != str(row.claim.uid):
        return True
    return row.claim.waiting if place is None else not manifests.is_at(pod, place)


@transaction.atomic
def detach_pod(row: SharePod, pod: Mapping[str, Any]) -> None:
    """Detach the pod from the claim, so that the pod's end does not release it."""
    PodClaim.objects.filter(claim=row.claim, pod_uid=pod["metadata"]["uid"]).delete()


def _gpu_of(row: SharePod) -> Gpu | None:
    assignment = row.claim.assignments.exclude(state="released").select_related("gpu__node").first()
    return None if assignment is None else assignment.gpu


@transaction.atomic
def note_pod(row: SharePod, pod: Mapping[str, Any]) -> None:
    """Record the claim's running pod among the cluster's containers. Repeatable."""
    gpu = _gpu_of(row)
    if gpu is None:
        return
    container = pod["spec"]["containers"][0]["name"]
    PodClaim.objects.filter(claim=row.claim).exclude(pod_uid=pod["metadata"]["uid"]).delete()
    PodClaim.objects.update_or_create(
        cluster=row.cluster,
        pod_uid=pod["metadata"]["uid"],
        container=container,
        defaults={
            "namespace": row.namespace,
            "pod": row.name,
            "container_index": 0,
            "node_name": pod["spec"]["nodeName"],
            "node": gpu.node,
            "core": row.claim.core_request,
            "memory_mib": row.claim.memory_mib,
            "gpu_indexes": [gpu.index],
            "claim": row.claim,
            "problem": "",
        },
    )
    outside.drop(cluster=row.cluster, pod_uid=pod["metadata"]["uid"])


@transaction.atomic
def end(row: SharePod, why: str) -> None:
    """Release the share. Repeatable."""
    row = SharePod.objects.select_for_update(of=("self",)).select_related("claim__tenant").get(pk=row.pk)
    if row.ended_at is not None:
        return
    lifecycle.release_claim(principal=SYSTEM, claim=row.claim, why=why)
    now = timezone.now()
    PodClaim.objects.filter(claim=row.claim, ended_at=None).update(ended_at=now)
    row.change(ended_at=now)
