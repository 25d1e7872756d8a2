"""The books: what quotas, ledger, cohorts, claims, assignments and GPUs say of one another."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.models import Sum

from apps.nodes.models import Gpu, Node
from apps.quotas.models import CohortShare, LedgerEntry, Resource, ResourceQuota, Tenant
from apps.scheduling.models import Assignment, Claim, Reservation


def used(tenant: Tenant) -> dict[str, int]:
    """Return the used amounts of the tenant's overall quotas, by resource."""
    return dict(ResourceQuota.objects.filter(tenant=tenant, pool=None).values_list("resource", "used"))


def all_quotas() -> list[ResourceQuota]:
    return list(ResourceQuota.objects.all())


def assert_ledger_agrees(quotas: Iterable[ResourceQuota] | None = None) -> None:
    """Check that the quotas' used amounts equal the sums of their entries."""
    quotas = all_quotas() if quotas is None else quotas
    rows = LedgerEntry.objects.order_by().values_list("tenant_id", "pool_id", "resource").annotate(Sum("amount"))
    entered = {(tenant, pool, resource): amount for tenant, pool, resource, amount in rows}
    for quota in quotas:
        assert entered.get((quota.tenant_id, quota.pool_id, quota.resource), 0) == quota.used


def assert_shares_agree(quotas: Sequence[ResourceQuota] | None = None) -> None:
    """Check that no cohort uses more than its quotas, and that each share is the sum of its quotas."""
    quotas = all_quotas() if quotas is None else quotas
    for share in CohortShare.objects.all():
        rows = [row for row in quotas if row.share_id == share.pk]
        assert share.lendable == sum(row.lendable for row in rows)
        assert share.taken == sum(row.taken() for row in rows)
        limited = [(row.used, row.hard) for row in rows if row.hard is not None]
        assert sum(used for used, _ in limited) <= sum(hard for _, hard in limited) + share.excess
    for row in quotas:
        assert row.borrowed == (0 if row.hard is None else max(0, row.used - row.hard))
    assert_ledger_agrees(quotas)


@contextmanager
def one_moment() -> Iterator[None]:
    """Let all queries see the database as it is now, whatever other processes commit meanwhile."""
    if connection.in_atomic_block:  # of a test whose rows nobody else sees
        yield
        return
    with transaction.atomic():
        connection.cursor().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def assert_instance_agrees(item: Assignment) -> None:
    """Check that the room of an opened instance, its own part and what claims have taken are the whole of it."""
    inside = Assignment.objects.filter(claim__instance_of=item.claim.uid).live()
    taken = [inside.filter(gpu=item.gpu_id).values_list(name, flat=True) for name in ("taken_core", "taken_memory_mib")]
    core, memory_mib = (sum(column) for column in taken)
    assert (item.room_core or 0) + item.taken_core + core == item.core_request
    assert (item.room_memory_mib or 0) + item.taken_memory_mib + memory_mib == item.memory_mib
    # One whose own part shrinks has taken more until the agent has confirmed it.
    assert item.taken_core >= (item.claim.own_core or 0)
    assert item.taken_memory_mib >= (item.claim.own_memory_mib or 0)


def assert_devices_agree() -> None:
    """Check that GPUs and nodes hold what their assignments hold."""
    core, memory_mib, host_memory_mib = Counter[int](), Counter[int](), Counter[int]()
    rows = Assignment.objects.live().order_by().values_list(
        "gpu_id", "other_gpu_id", "gpu__node_id", "held_core", "held_memory_mib", "held_host_memory_mib"
    )  # fmt: skip
    for gpu, other, node, held_core, held_memory_mib, held_host_memory_mib in rows:
        # One that moves holds its share on two.
        for one in {gpu, other} - {None}:
            core[one] += held_core
            memory_mib[one] += held_memory_mib
        host_memory_mib[node] += held_host_memory_mib
    for key, core_used, memory_used_mib in Gpu.objects.values_list("pk", "core_used", "memory_used_mib"):
        assert (core[key], memory_mib[key]) == (core_used, memory_used_mib)
    for key, used_mib in Node.objects.values_list("pk", "host_memory_used_mib"):
        assert host_memory_mib[key] == used_mib


def assert_charges_agree(quotas: Iterable[ResourceQuota]) -> None:
    """Check that the overall quotas' used amounts equal what claims and reservations are charged."""
    charged = Counter[tuple[int, str]]()
    for model in (Claim, Reservation):
        sums = [Sum(f"charged_{resource}") for resource in Resource.values]
        for tenant, *amounts in model._default_manager.order_by().values_list("tenant_id").annotate(*sums):
            charged.update({(tenant, name): amount for name, amount in zip(Resource.values, amounts, strict=True)})
    for quota in quotas:
        if quota.pool_id is None and quota.resource in Resource.values:
            assert charged[quota.tenant_id, quota.resource] == quota.used


def assert_agree() -> None:
    """Check that quotas, ledger, claims, assignments and GPUs agree: a few queries, however many rows there are."""
    quotas = all_quotas()
    assert_shares_agree(quotas)
    assert_devices_agree()
    for item in Assignment.objects.live().filter(room_core__isnull=False).select_related("claim"):
        assert_instance_agrees(item)
    assert_charges_agree(quotas)
