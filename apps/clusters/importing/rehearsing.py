"""Rehearsal of an import, with locks held for moments only.

Tenants, bindings and quotas are created one tenant at a time, in a transaction that is rolled back. Pods, of which
there may be thousands, are checked on numbers: their tenants' quotas as those transactions had them, the GPUs' present
free capacity, and what earlier pods took of both.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from django.db import transaction
from django.db.models import Q

from apps.accounting.services.sums import Sums
from apps.clusters.formats.asks import Share
from apps.clusters.importing.containers import ContainerPlan, plan_container
from apps.clusters.importing.plan import Plan, PodWanted, QuotaWanted, shares_by_container
from apps.clusters.importing.taking import Report, payer, quota, tell_of_pod
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import outside, placing
from apps.nodes.models import Gpu
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from gpucloud.errors import GpucloudError


def rehearse(*, principal: Principal, cluster: Cluster, plan: Plan) -> Report:
    """Return the report that `taking.take` would give, without changes. Raises Denied."""
    principal.require_operator()
    books = _Books(principal, cluster, plan)
    pods = _Pods(principal, cluster, Sums(books.quotas))
    for pod in plan.pods:
        if (tenant := books.payers[pod.namespace]) is not None:
            tell_of_pod(pod, books.report, partial(pods.hold, tenant=tenant))
    return books.report


class _Books:
    """Tenants and their quotas after the import. `payers`: tenants by namespace; None where none would pay."""

    def __init__(self, principal: Principal, cluster: Cluster, plan: Plan) -> None:
        self._whose, self._plan = (principal, cluster), plan
        self.report = Report(left=list(plan.left))
        self.payers: dict[str, Tenant | None] = {}
        self.quotas: list[ResourceQuota] = []
        of_tenants: dict[str, list[str]] = defaultdict(list)
        for namespace in plan.namespaces:
            with _rolled_back():
                self.payers[namespace] = found = payer(namespace, plan, *self._whose, self.report)
            if found is not None:
                of_tenants[found.slug].append(namespace)
        told: dict[QuotaWanted, Report] = {}
        for namespaces in of_tenants.values():
            with _rolled_back():
                told |= self._one_tenants(namespaces)
        for wanted in plan.quotas:
            if (said := told.get(wanted)) is not None:
                self.report.made += said.made
                self.report.kept += said.kept
                self.report.left += said.left

    def _one_tenants(self, namespaces: list[str]) -> dict[QuotaWanted, Report]:
        """Create the quotas of one tenant's namespaces and read the resulting rows."""
        said = {wanted: Report() for wanted in self._plan.quotas if wanted.namespace in namespaces}
        for namespace in namespaces:
            self.payers[namespace] = payer(namespace, self._plan, *self._whose, Report())
        for wanted, report in said.items():
            if (tenant := self.payers[wanted.namespace]) is not None:
                quota(wanted, tenant, *self._whose, report)
        _, cluster = self._whose
        rows = ResourceQuota.objects.filter(Q(pool=cluster.pool) | Q(pool=None), tenant=self.payers[namespaces[0]])
        self.quotas += rows.select_related("tenant", "pool", "share").order_by("pk")
        return said


class _Pods:
    """Check of pods one after the other, each with those before it."""

    def __init__(self, principal: Principal, cluster: Cluster, sums: Sums) -> None:
        self._principal, self._cluster, self._sums = principal, cluster, sums
        self._reserved, self._outside = outside.reserved_amounts(cluster.pool), outside.holds_of(cluster)
        # Core and MiB by GPU uuid that earlier pods took, minus their use without a claim.
        self._taken: dict[str, tuple[int, int]] = {}

    def hold(self, pod: PodWanted, *, tenant: Tenant) -> list[str]:
        """Return the lines that `taking.hold` would, or raise as it does; then nothing of the pod is taken."""
        sums, taken = self._sums.save(), dict(self._taken)
        try:
            for uuid, (core, memory_mib) in self._outside.get(pod.uid, {}).items():
                self._take(uuid, -core, -memory_mib)
            return [self._container(pod, held, tenant) for held in shares_by_container(pod)]
        except GpucloudError:
            self._sums.undo(sums)
            self._taken = taken
            raise

    def _container(self, pod: PodWanted, held: tuple[int, str, tuple[Share, ...]], tenant: Tenant) -> str:
        wanted = plan_container(pod, held, self._cluster, PodClaim.objects.all())
        if wanted is None:
            return ""
        if wanted.found is not None:
            wanted.require_there()
            return str(wanted)
        pool = self._cluster.pool
        claim = lifecycle.draft_claim(
            principal=self._principal, spec=ClaimSpec(tenant=tenant, pool=pool, **wanted.claim_fields)
        )
        self._sums.charge(claim)
        self._place(wanted, claim)
        return str(wanted)

    def _place(self, wanted: ContainerPlan, claim: Claim) -> None:
        """Place the claim as a commit does. Raises NotAsItRuns."""
        for gpu in wanted.gpus:
            free, reserved = self._free(gpu), self._reserved.get(gpu.uuid, (0, 0))
            short = free[0] - reserved[0] < claim.core_request or free[1] - reserved[1] < claim.memory_mib
            if short or gpu.state != "ready" or gpu.node.state != "ready":
                raise placing.no_room((one.index, *self._free(one)) for one in wanted.gpus)
        for gpu in wanted.gpus:
            self._take(gpu.uuid, claim.core_request, claim.memory_mib)

    def _free(self, gpu: Gpu) -> tuple[int, int]:
        core, memory_mib = self._taken.get(gpu.uuid, (0, 0))
        return max(0, gpu.core_left - core), max(0, gpu.memory_left_mib - memory_mib)

    def _take(self, uuid: str, core: int, memory_mib: int) -> None:
        before = self._taken.get(uuid, (0, 0))
        self._taken[uuid] = before[0] + core, before[1] + memory_mib


@contextmanager
def _rolled_back() -> Iterator[None]:
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
