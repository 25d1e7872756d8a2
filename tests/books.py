"""The books: what quotas, ledger, cohorts, claims, assignments and GPUs say of one another."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.models import Q

from apps.nodes.models import Gpu, Node
from apps.quotas.models import CohortShare, LedgerEntry, Resource, ResourceQuota, Tenant
from apps.scheduling.models import Assignment, Claim, Reservation


def used(tenant: Tenant) -> dict[str, int]:
    """Return the used amounts of the tenant's overall quotas, by resource."""
    return dict(ResourceQuota.objects.filter(tenant=tenant, pool=None).values_list("resource", "used"))


def assert_ledger_agrees() -> None:
    """Check that the quotas' used amounts equal the sums of their entries."""
    for quota in ResourceQuota.objects.all():
        entries = LedgerEntry.objects.filter(tenant=quota.tenant, pool=quota.pool, resource=quota.resource)
        assert sum(entries.values_list("amount", flat=True)) == quota.used


def assert_shares_agree() -> None:
    """Check that no cohort uses more than its quotas, and that each share is the sum of its quotas."""
    for share in CohortShare.objects.all():
        rows = list(share.quotas.all())
        assert share.lendable == sum(row.lendable for row in rows)
        assert share.taken == sum(row.taken() for row in rows)
        limited = [(row.used, row.hard) for row in rows if row.hard is not None]
        assert sum(used for used, _ in limited) <= sum(hard for _, hard in limited) + share.excess
    for row in ResourceQuota.objects.all():
        assert row.borrowed == (0 if row.hard is None else max(0, row.used - row.hard))
    assert_ledger_agrees()


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
    assert (item.room_core or 0) + (item.claim.own_core or 0) + core == item.core_request
    assert (item.room_memory_mib or 0) + (item.claim.own_memory_mib or 0) + memory_mib == item.memory_mib


def assert_agree() -> None:
    """Check that quotas, ledger, claims, assignments and GPUs agree."""
    assert_shares_agree()
    for gpu in Gpu.objects.all():
        # One that moves holds its share on two.
        live = Assignment.objects.filter(Q(gpu=gpu) | Q(other_gpu=gpu)).live()
        assert sum(live.values_list("held_core", flat=True)) == gpu.core_used
        assert sum(live.values_list("held_memory_mib", flat=True)) == gpu.memory_used_mib
    for item in Assignment.objects.live().filter(room_core__isnull=False).select_related("claim"):
        assert_instance_agrees(item)
    for node in Node.objects.all():
        on_it = Assignment.objects.filter(gpu__node=node).live()
        assert sum(on_it.values_list("held_host_memory_mib", flat=True)) == node.host_memory_used_mib
    for tenant in Tenant.objects.all():
        overall = used(tenant)
        for resource in set(overall) & set(Resource.values):
            rows = (Claim.objects.filter(tenant=tenant), Reservation.objects.filter(tenant=tenant))
            charged = sum(sum(row.values_list(f"charged_{resource}", flat=True)) for row in rows)
            assert charged == overall[resource]
