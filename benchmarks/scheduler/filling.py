"""Contents of the database before each row of the scheduler's benchmark, and queries after it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connection
from django.db.models import F, Max, Min
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu, Node
from apps.quotas.models import LedgerEntry, Pool, ResourceQuota, Tenant
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import quotas, tenants, tokens
from apps.scheduling.events import ROUNDS_CHANNEL
from apps.scheduling.models import Assignment, Claim, FleetSnapshot, Round
from apps.scheduling.models.share import amounts as amounts_of

TENANTS = 4
GPUS_PER_NODE = 8
MEMORY_MIB = 80 * 1024
AT_ONCE = 1000
MODEL = "NVIDIA A100"


def migrate() -> None:
    """Create the schema and the user."""
    call_command("migrate", verbosity=0)
    pool = tenants.create_pool(principal=SYSTEM, name="default")
    assert pool.pk
    for number in range(TENANTS):
        tenant = tenants.create_tenant(principal=SYSTEM, slug="team" if not number else f"team-{number}", name="T")
        for resource in ("core_percent", "memory_mib", "vgpus"):
            quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource=resource, hard=10**12)


def fill(*, nodes: int, waiting: int, core: int, occupied: bool = False) -> str:
    """Create nodes and queued claims with their charges; if occupied, no GPU is wholly free. Return a token."""
    pool = Pool.objects.get(name="default")
    _empty()
    _add_nodes(pool, nodes)
    if occupied:
        _occupy(pool)
    rich = list(Tenant.objects.order_by("pk"))
    for first in range(0, waiting, AT_ONCE):
        numbers = range(first, min(waiting, first + AT_ONCE))
        _add_claims([_claim(pool, rich[number % TENANTS], core) for number in numbers])
    made = tokens.create(principal=SYSTEM, name="bench", tenant=rich[0], role="member", scopes=SCOPES)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return made[1]


def _empty() -> None:
    FleetSnapshot.objects.all().delete()
    with connection.cursor() as cursor:
        # The ledger refuses DELETE; TRUNCATE does not fire its row triggers.
        cursor.execute("TRUNCATE scheduling_claim, nodes_gpu, nodes_node, quotas_ledgerentry CASCADE")
    ResourceQuota.objects.update(used=0)


def _add_nodes(pool: Pool, count: int) -> None:
    now = timezone.now()
    made = Node.objects.bulk_create(Node(name=f"node-{number}", pool=pool, last_seen_at=now) for number in range(count))
    Gpu.objects.bulk_create(
        Gpu(uuid=f"GPU-{node.pk}-{index}", node=node, index=index, model=MODEL, memory_mib=MEMORY_MIB)
        for node in made
        for index in range(GPUS_PER_NODE)
    )


def _occupy(pool: Pool) -> None:
    """Create a placed claim of a tenth on each GPU."""
    tenant = Tenant.objects.order_by("pk")[0]
    gpus = list(Gpu.objects.order_by("pk"))
    claims = [_claim(pool, tenant, 10, state="active", assigned_at=timezone.now()) for _ in gpus]
    _add_claims(claims)
    Assignment.objects.bulk_create(
        Assignment(
            claim=claim, gpu=gpu, core_request=10, core_limit=10, memory_mib=1024, held_core=10, held_memory_mib=1024,
            observed_generation=1, state="in_force",
        )
        for claim, gpu in zip(claims, gpus, strict=True)
    )  # fmt: skip
    Gpu.objects.update(core_used=10, memory_used_mib=1024)


def _claim(pool: Pool, tenant: Tenant, core: int, **facts: Any) -> Claim:
    claim = Claim(
        tenant=tenant, pool=pool, name="bench", core_request=core, core_limit=core, memory_mib=1024,
        created_by="bench", timeline=[["pending", timezone.now().isoformat()]], **facts,
    )  # fmt: skip
    for resource, amount in amounts_of(gpu_count=1, core=core, memory_mib=1024).items():
        setattr(claim, f"charged_{resource}", amount)
    return claim


def _add_claims(claims: list[Claim]) -> None:
    """Create queued claims as the services write them, with their charges and the ledger."""
    Claim.objects.bulk_create(claims)
    for quota in ResourceQuota.objects.all():
        mine = [claim for claim in claims if claim.tenant_id == quota.tenant_id]
        amounts = [getattr(claim, f"charged_{quota.resource}") for claim in mine]
        LedgerEntry.objects.bulk_create(
            LedgerEntry(
                tenant_id=quota.tenant_id, pool_id=None, resource=quota.resource, kind="charge", amount=amount,
                used=quota.used + sum(amounts[: at + 1]), hard=quota.hard, claim_uid=claim.uid, actor="bench",
            )
            for at, (claim, amount) in enumerate(zip(mine, amounts, strict=True))
        )  # fmt: skip
        ResourceQuota.objects.filter(pk=quota.pk).update(used=F("used") + sum(amounts))


def beat() -> None:
    """Update the heartbeat of every node."""
    Node.objects.update(last_seen_at=timezone.now())


def close() -> None:
    """Close this thread's connection."""
    connection.close()


def count_placed() -> int:
    """Count placed claims."""
    return Claim.objects.filter(state="assigned").count()


def count_untried() -> int:
    """Count claims that no round has tried."""
    return Claim.objects.filter(state="pending").count()


def rounds() -> int:
    """Count recorded rounds."""
    return Round.objects.count()


def seconds_of_rounds() -> float:
    """Return the seconds from the start of the first round to the record of the last."""
    bounds = Round.objects.aggregate(first=Min("pk"), last=Max("at"))
    first = Round.objects.get(pk=bounds["first"])
    return float((bounds["last"] - first.at).total_seconds() + first.duration_us / 1e6)


def check() -> None:
    """Check that all sums agree.

    Raises AssertionError.
    """
    assert not differences()


class Listener:
    """A session that is notified of every committed change of a waiting claim."""

    def __init__(self, link: "psycopg.Connection[Any]") -> None:
        self._link = link

    def until_assigned(self, uid: str, *, seconds: float) -> None:
        """Wait until the claim is placed.

        Raises AssertionError.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            row = self._link.execute("SELECT state FROM scheduling_claim WHERE uid = %s", [uid]).fetchone()
            if row and row[0] == "assigned":
                return
            list(self._link.notifies(timeout=1.0, stop_after=1))
        raise AssertionError(f"claim {uid} was not placed")


@contextmanager
def listen() -> Iterator[Listener]:
    """Listen to commits from now on."""
    parameters = connection.get_connection_params()
    with psycopg.connect(**{**parameters, "autocommit": True, "cursor_factory": None}) as link:
        link.execute(f"LISTEN {ROUNDS_CHANNEL}")
        yield Listener(link)
