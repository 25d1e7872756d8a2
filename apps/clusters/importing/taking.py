"""Execution of a plan: tenants and bindings, quotas, then each pod in a transaction of its own.

Repeatable: existing objects stay. `rehearsing` shows the result without changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.clusters.formats.asks import Share
from apps.clusters.importing.containers import plan_container
from apps.clusters.importing.plan import Left, Plan, PodWanted, QuotaWanted, shares_by_container
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, outside, placing
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import charging, quotas, tenants
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from gpucloud.errors import GpucloudError


@dataclass(slots=True)
class Report:
    """Lines for people: created, existing and skipped objects."""

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


def take(*, principal: Principal, cluster: Cluster, plan: Plan) -> Report:
    """Create what is missing. Raises Denied; other failures are in the report, and the rest is done."""
    principal.require_operator()
    report = Report(left=list(plan.left))
    payers = {namespace: payer(namespace, plan, principal, cluster, report) for namespace in plan.namespaces}
    for wanted in plan.quotas:
        if (tenant := payers[wanted.namespace]) is not None:
            quota(wanted, tenant, principal, cluster, report)
    for pod in plan.pods:
        if (tenant := payers[pod.namespace]) is not None:
            tell_of_pod(pod, report, partial(hold, tenant=tenant, principal=principal, cluster=cluster))
    return report


def payer(namespace: str, plan: Plan, principal: Principal, cluster: Cluster, report: Report) -> Tenant | None:
    """Return the tenant that pays for the namespace: the bound one, else the one of that name, created if missing."""
    labels = dict(plan.labels.get(namespace, {}))
    bound = bindings.tenant_of(cluster.bindings.select_related("tenant"), namespace, labels)
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


def quota(wanted: QuotaWanted, tenant: Tenant, principal: Principal, cluster: Cluster, report: Report) -> None:
    """Create the tenant's quota; a tenant that has one for the pool or for all pools keeps it."""
    covering = Q(pool=cluster.pool) | Q(pool=None)
    there = ResourceQuota.objects.filter(covering, tenant=tenant, resource=wanted.resource).first()
    hard = "unlimited" if wanted.hard is None else wanted.hard
    if there is not None:
        report.kept.append(f"{tenant.slug}: {wanted.resource} is {_hard_text(there.hard)}; the cluster says {hard}.")
        return
    try:
        quotas.create_quota(
            principal=principal, tenant=tenant, pool=cluster.pool, resource=wanted.resource, hard=wanted.hard
        )
    except GpucloudError as error:
        report.left.append(Left(f"Quota of {tenant.slug}, {wanted.resource}", error.detail))
        return
    report.made.append(f"{tenant.slug}: {wanted.resource} {hard} in pool {cluster.pool.name}.")


def _hard_text(hard: int | None) -> str:
    return "unlimited" if hard is None else str(hard)


def tell_of_pod(pod: PodWanted, report: Report, hold: Callable[[PodWanted], list[str]]) -> None:
    """Report the result for all of a pod's containers, or for none."""
    about = f"{pod.namespace}/{pod.name}"
    try:
        made = hold(pod)
    except GpucloudError as error:
        report.left.append(Left(f"Pod {about}", error.detail))
        return
    except IntegrityError:
        # The watch of pods recorded it first.
        made = []
    done = [text for text in made if text]
    report.made += [f"{about} ({pod.format}): {text}" for text in done]
    if not done:
        report.kept.append(f"{about} holds what it has already.")


@transaction.atomic
def hold(pod: PodWanted, *, tenant: Tenant, principal: Principal, cluster: Cluster) -> list[str]:
    """Create a claim for each container without one, or none at all; return lines for people. Raises NotAsItRuns."""
    parts = list(shares_by_container(pod))
    if len(parts) > 1:
        # Order of locks: quotas, GPUs. The first container's claim takes its GPUs before the next one is charged.
        charging.lock_quotas_of(tenant, pool=cluster.pool)
    return [_container(pod, held, tenant=tenant, principal=principal, cluster=cluster) for held in parts]


def _container(
    pod: PodWanted, held: tuple[int, str, tuple[Share, ...]], *, tenant: Tenant, principal: Principal, cluster: Cluster
) -> str:
    """Create the container's claim on its present GPUs; return an empty line if it has one.

    Raises NotAsItRuns and what creating a claim raises.
    """
    wanted = plan_container(pod, held, cluster, PodClaim.objects.select_for_update())
    if wanted is None:
        return ""
    claim = wanted.found or lifecycle.create_claim(
        principal=principal, spec=ClaimSpec(tenant=tenant, pool=cluster.pool, **wanted.claim_fields)
    )
    # Order of locks: quotas, GPUs. The GPU use without a claim becomes the claim's.
    outside.drop(cluster=cluster, pod_uid=pod.uid)
    if wanted.found is None:
        placing.place_on(claim, wanted.gpus)
    else:
        wanted.require_there()
    values = {**wanted.facts, "claim": claim}
    PodClaim.objects.update_or_create(cluster=cluster, pod_uid=pod.uid, container=wanted.name, defaults=values)
    return str(wanted)
