"""Contents of the database for the page benchmark: the telemetry benchmark's fleet, and a year of use."""

from datetime import timedelta
from typing import Any

from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool, ResourceQuota, Tenant, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit, quotas, tenants
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Claim, FleetSnapshot, Proposal, Reservation, Round
from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.filling import fill
from benchmarks.utilization import fill_levels

TENANTS, MEMBERS, WAITING, EVENTS, ROUNDS, RESERVATIONS, PROPOSALS = 46, 20, 300, 2000, 500, 20, 60
REASONS = [
    {
        "code": "no-gpu",
        "detail": "1600 GPUs: 900 compute full, 650 too little memory, 50 on cordoned nodes; fits if 512 MiB less",
    }
]


def furnish(nodes: int) -> Filled:
    """Create nodes of 8 GPUs with two claims each, 50 tenants, a queue, rounds, reservations, an audit log."""
    filled = fill(nodes)
    pool = Pool.objects.get(name="default")
    _tenants()
    _waiting(pool)
    _decisions(pool)
    for number in range(EVENTS):
        audit.record(
            SYSTEM, "claim.resize", audit.Named("claim", filled.nodes[0].claims[0]),
            before={"core_limit": 50}, after={"core_limit": 50 + number % 50},
        )  # fmt: skip
    _reserve(pool)
    # Two in a hundred are unhealthy.
    for node in Node.objects.order_by("pk")[: nodes // 50]:
        node.cordoned = True
        node.save(update_fields=["cordoned"])
    _settle()
    return filled


def history(days: int) -> None:
    """Create roll-ups of all levels, as an installation of this size has after this time."""
    fill_levels(days=days, minute_days=1)
    _settle()


def sample() -> dict[str, Any]:
    """Return one object of each kind for the addresses of pages; none is empty."""
    claim = Claim.objects.filter(state="active").order_by("pk")[100]
    gpu = claim.assignments.get().gpu
    return {
        "nodes": gpu.node.name, "gpus": gpu.uuid, "claims": claim.uid, "pools": "default",
        "tenants": claim.tenant.slug, "quotas": ResourceQuota.objects.filter(tenant=claim.tenant)[0].pk,
        "rounds": Round.objects.latest("pk").pk, "reservations": Reservation.objects.latest("pk").uid,
        "proposals": Proposal.objects.latest("pk").uid,
    }  # fmt: skip


def _settle() -> None:
    """Run the database's maintenance now: it has grown in a minute, not in days."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def _tenants() -> None:
    first = Tenant.objects.order_by("pk")[0]
    for number in range(MEMBERS):
        person = User.objects.create(username=f"person-{number}")
        tenants.set_member(principal=SYSTEM, tenant=first, user=person, role="member")
    for number in range(TENANTS):
        tenant = tenants.create_tenant(principal=SYSTEM, slug=f"lab-{number}", name=f"Laboratory {number}")
        for resource, hard in {"core_percent": 1000, "memory_mib": 1 << 20}.items():
            quota = quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource=resource, hard=hard)
            ResourceQuota.objects.filter(pk=quota.pk).update(used=hard * number // TENANTS)
    for quota in ResourceQuota.objects.filter(tenant__slug__startswith="team-"):
        charged = Claim.objects.filter(tenant=quota.tenant).aggregate(sum=Sum(f"charged_{quota.resource}"))["sum"]
        ResourceQuota.objects.filter(pk=quota.pk).update(used=charged or 0, hard=2 * (charged or 1))


def _waiting(pool: Pool) -> None:
    some = list(Tenant.objects.order_by("pk"))
    Claim.objects.bulk_create(
        Claim(
            tenant=some[number % len(some)], pool=pool, name=f"waits-{number}", core_request=100, core_limit=100,
            gpu_count=8, memory_mib=80 * 1024, created_by="bench", state="queued", reasons=REASONS,
            timeline=[["pending", timezone.now().isoformat()]],
        )
        for number in range(WAITING)
    )  # fmt: skip


def _decisions(pool: Pool) -> None:
    """Create rounds and proposals that name existing claims and GPUs."""
    placed = list(Claim.objects.filter(state="active").order_by("pk")[:200])
    gpus = list(Gpu.objects.order_by("pk")[:200])
    base = FleetSnapshot.objects.create(pool=pool, policy="balanced", state=b"")
    steps = [
        {"claim": str(claim.uid), "request": {}, "gpus": [gpu.uuid]}
        for claim, gpu in zip(placed, gpus, strict=False)
    ]  # fmt: skip
    Round.objects.bulk_create(
        Round(pool=pool, base=base, duration_us=1500, considered=200, placed=200, steps=steps) for _ in range(ROUNDS)
    )
    Proposal.objects.bulk_create(
        Proposal(
            pool=pool, claim=claim, kind="limit", policy="balanced", before={"core_limit": 50},
            after={"core_limit": 30}, explanation="It used 12 % in the last hour.",
        )
        for claim in placed[:PROPOSALS]
    )  # fmt: skip


def _reserve(pool: Pool) -> None:
    first, now = Tenant.objects.order_by("pk")[0], timezone.now()
    for number in range(RESERVATIONS):
        begin = now + timedelta(hours=1 + 4 * number)
        create_reservation(
            principal=SYSTEM, tenant=first, pool=pool, name=f"exam-{number}", core_request=5, memory_mib=256,
            start_at=begin, end_at=begin + timedelta(hours=2),
        )  # fmt: skip
