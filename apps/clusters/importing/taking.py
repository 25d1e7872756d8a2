"""Making a plan true: tenants and bindings, quotas, then pod by pod, each in a transaction of its own.

All of it may be done again: what is there stays as it is. A rehearsal does the same and takes everything back, so it
refuses what the taking over would refuse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.clusters.formats.asks import LEAST_CORE, Share
from apps.clusters.importing.plan import Left, Plan, PodWanted, QuotaWanted, grouped
from apps.clusters.models import Cluster, PodClaim, SharePod
from apps.clusters.services import bindings, outside, placing
from apps.nodes.models import Gpu, Node
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import quotas, tenants
from apps.scheduling.models import AssignmentState, Claim
from apps.scheduling.services.claims import life
from gpucloud.errors import GpucloudError


@dataclass(slots=True)
class Report:
    """What was made, what was there, and what was left, in words for people."""

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


def rehearse(*, principal: Principal, cluster: Cluster, plan: Plan) -> Report:
    """What `take` would do now; nothing is changed."""
    with transaction.atomic():
        report = take(principal=principal, cluster=cluster, plan=plan)
        transaction.set_rollback(True)
    return report


def take(*, principal: Principal, cluster: Cluster, plan: Plan) -> Report:
    """Make what is missing. Raises Denied; what else cannot be done is in the report, and the rest is done."""
    principal.require_operator()
    report = Report(left=list(plan.left))
    payers = {
        namespace: _payer(namespace, plan.labels.get(namespace, {}), principal, cluster, report)
        for namespace in plan.namespaces
    }
    for wanted in plan.quotas:
        if (tenant := payers[wanted.namespace]) is not None:
            _quota(wanted, tenant, principal, cluster, report)
    for pod in plan.pods:
        if (tenant := payers[pod.namespace]) is not None:
            _pod(pod, tenant, principal, cluster, report)
    return report


def _payer(
    namespace: str, labels: Mapping[str, str], principal: Principal, cluster: Cluster, report: Report
) -> Tenant | None:
    """Who pays for the namespace: who is bound to it, else the tenant of its name, made where there is none."""
    bound = bindings.tenant_of(cluster.bindings.select_related("tenant"), namespace, dict(labels))
    if bound is not None:
        report.kept.append(f"Namespace {namespace} is {bound.slug}'s.")
        return bound
    try:
        with transaction.atomic():
            tenant = Tenant.objects.filter(slug=namespace).first()
            if tenant is None:
                tenant = tenants.create_tenant(principal=principal, slug=namespace, name=namespace)
                report.made.append(f"Tenant {namespace}.")
            bindings.bind(principal=principal, cluster=cluster, tenant=tenant, namespace=namespace)
    except GpucloudError as error:
        report.left.append(Left(f"Namespace {namespace}", error.detail))
        return None
    report.made.append(f"Namespace {namespace} is bound to tenant {tenant.slug}.")
    return tenant


def _quota(wanted: QuotaWanted, tenant: Tenant, principal: Principal, cluster: Cluster, report: Report) -> None:
    """Of tenants that have a quota of it, for the pool or for all, nothing is changed."""
    covering = Q(pool=cluster.pool) | Q(pool=None)
    there = ResourceQuota.objects.filter(covering, tenant=tenant, resource=wanted.resource).first()
    hard = "unlimited" if wanted.hard is None else wanted.hard
    if there is not None:
        report.kept.append(f"{tenant.slug}: {wanted.resource} is {_said(there.hard)}; the cluster says {hard}.")
        return
    try:
        quotas.create_quota(
            principal=principal, tenant=tenant, pool=cluster.pool, resource=wanted.resource, hard=wanted.hard
        )
    except GpucloudError as error:
        report.left.append(Left(f"Quota of {tenant.slug}, {wanted.resource}", error.detail))
        return
    report.made.append(f"{tenant.slug}: {wanted.resource} {hard} in pool {cluster.pool.name}.")


def _said(hard: int | None) -> str:
    return "unlimited" if hard is None else str(hard)


def _pod(pod: PodWanted, tenant: Tenant, principal: Principal, cluster: Cluster, report: Report) -> None:
    """All of its containers, or none."""
    about = f"{pod.namespace}/{pod.name}"
    try:
        made = hold(pod, tenant=tenant, principal=principal, cluster=cluster)
    except GpucloudError as error:
        report.left.append(Left(f"Pod {about}", error.detail))
        return
    except IntegrityError:
        # Its watch was quicker.
        made = []
    done = [text for text in made if text]
    report.made += [f"{about} ({pod.format}): {text}" for text in done]
    if not done:
        report.kept.append(f"{about} holds what it has already.")


@transaction.atomic
def hold(pod: PodWanted, *, tenant: Tenant, principal: Principal, cluster: Cluster) -> list[str]:
    """A claim for each container that has none yet, or none at all; in words. Raises NotAsItRuns, or why not."""
    return [_container(pod, held, tenant=tenant, principal=principal, cluster=cluster) for held in grouped(pod)]


def _container(
    pod: PodWanted, held: tuple[int, str, tuple[Share, ...]], *, tenant: Tenant, principal: Principal, cluster: Cluster
) -> str:
    """Its claim, on the GPUs that it runs on; empty where it has one. Raises NotAsItRuns and what a claim raises."""
    place, name, shares = held
    rows = PodClaim.objects.select_for_update()
    row = rows.filter(cluster=cluster, pod_uid=pod.uid, container=name).first()
    if row is not None and (row.claim_id is not None or row.ended_at is not None):
        return ""
    node = placing.node_of(cluster.pool, pod.node)
    gpus = [gpu_of(share, node) for share in shares]
    asked = _asked(shares, gpus, name)
    found = _of_sharepod(pod, name, cluster)
    claim = found or life.create_claim(
        principal=principal,
        tenant=tenant,
        pool=cluster.pool,
        name=f"{pod.namespace}/{pod.name}"[:200],
        pod={"namespace": pod.namespace, "name": pod.name, "container": name, "uid": pod.uid},
        **asked,
        **pod.labels,
    )
    # After its quotas and before its GPUs: what it took of them without a claim is now the claim's to take.
    outside.drop(cluster=cluster, pod_uid=pod.uid)
    if found is None:
        placing.place_on(claim, gpus)
    else:
        _require_there(claim, gpus)
    values = _facts(pod, place, node, gpus, asked)
    values |= {"claim": claim, "problem": ""}
    PodClaim.objects.update_or_create(cluster=cluster, pod_uid=pod.uid, container=name, defaults=values)
    where = ", ".join(f"GPU {gpu.index} of {node.name}" for gpu in gpus)
    return f"container {name} holds {asked['core_request']} percent and {asked['memory_mib']} MiB on {where}."


def _facts(pod: PodWanted, place: int, node: Node, gpus: list[Gpu], asked: Mapping[str, int]) -> dict[str, Any]:
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "container_index": place,
        "node_name": pod.node,
        "node": node,
        "core": asked["core_request"] * len(gpus),
        "memory_mib": asked["memory_mib"] * len(gpus),
        "gpu_indexes": sorted(gpu.index for gpu in gpus),
    }


def _of_sharepod(pod: PodWanted, container: str, cluster: Cluster) -> Claim | None:
    """The claim for which the pod was made, if it was: its word alone is not believed."""
    if not pod.claim:
        return None
    named = {"namespace": pod.namespace, "name": pod.name}
    live = SharePod.objects.filter(cluster=cluster, ended_at=None, **named).select_related("claim")
    wanted = {**named, "container": container}
    return next((row.claim for row in live if str(row.claim.uid) == pod.claim and row.claim.pod == wanted), None)


def _require_there(claim: Claim, gpus: list[Gpu]) -> None:
    """Raises NotAsItRuns where the claim, sent back or moved, is on other GPUs than its pod."""
    there = claim.assignments.exclude(state=AssignmentState.RELEASED).values_list("gpu_id", flat=True)
    if {gpu.pk for gpu in gpus} != set(there):
        raise placing.NotAsItRuns(f"Its claim {claim.uid} is elsewhere by now: the pod is to end.")


def gpu_of(share: Share, node: Node) -> Gpu:
    """The GPU of the node that the share is of. Raises NotAsItRuns."""
    named: dict[str, Any] = {"index": share.gpu_index} if share.gpu_uuid is None else {"uuid": share.gpu_uuid}
    found = node.gpus.filter(present=True, **named).first()
    if found is None:
        which = share.gpu_uuid or f"GPU {share.gpu_index}"
        raise placing.NotAsItRuns(f"Node {node.kubernetes_node or node.name} has no {which}.")
    return found


def _asked(shares: tuple[Share, ...], gpus: list[Gpu], name: str) -> dict[str, int]:
    """One claim's fields: the same on each of its GPUs."""
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
