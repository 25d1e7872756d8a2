"""A lender, a borrower and their nodes: contents of the database before each row, played agents, and the clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from agent import wire
from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Node
from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import create_claim
from apps.scheduling.services.claims.observation import take_observed
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.claims.spec import ClaimSpec
from benchmarks.report import quantile
from gpucloud.celery import app
from tests.cast import GIB, Machine, done

LOST_SECONDS = 600.0
POLL_SECONDS = 0.05
# Claims that are made in one transaction: their making is not measured.
AT_ONCE = 50
# Of the played agents: each answers for a part of the nodes.
THREADS = 2


def fill(*, nodes: int, gpus_per_node: int, preempt_by: str) -> None:
    """Create the nodes, a lender whose quota is all of them, and a borrower in its cohort whose quota is nothing."""
    with connection.cursor() as cursor:
        # The ledger refuses DELETE; TRUNCATE does not fire its row triggers.
        cursor.execute("TRUNCATE quotas_tenant, quotas_pool, quotas_cohortshare, quotas_ledgerentry CASCADE")
    pool = tenants.create_pool(principal=SYSTEM, name="default")
    change_pool(principal=SYSTEM, pool=pool, preempt_by=preempt_by, preemption_grace_seconds=None)
    for slug, hard in (("lender", 100 * nodes * gpus_per_node), ("borrower", 0)):
        tenant = tenants.create_tenant(principal=SYSTEM, slug=slug, name=slug.capitalize())
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource="core_percent", hard=hard)
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource="memory_mib", hard=None)
    for number in range(nodes):
        Machine(f"node-{number}", pool, gpus=gpus_per_node, host_memory_mib=8 * gpus_per_node * GIB)
    Node.objects.update(last_seen_at=timezone.now())


def borrow(count: int) -> None:
    """Let the borrower take that many GPUs, one for each claim, and wait until all are in force."""
    _create("borrower", count, gpu_count=1)
    _until(lambda: _count("borrower", "active") == count, "the borrower's claims")
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def wait_for_worker() -> None:
    """Wait until a worker answers: its start is not measured."""
    _until(lambda: bool(app.control.ping(timeout=1.0)), "the worker")


def want_back(count: int, gpus: int) -> None:
    """Let the lender claim its GPUs, and wait until all of its claims wait in the queue."""
    _create("lender", count, gpu_count=gpus)
    _until(lambda: _count("lender", "queued") == count, "the lender's claims to be refused")


def take_back(count: int) -> dict[str, float]:
    """Allow preemption, without a grace; return the seconds until half and all of the lender's claims are in force."""
    pool, came = Pool.objects.get(name="default"), dict[int, float]()
    begun = time.monotonic()
    change_pool(principal=SYSTEM, pool=pool, preemption_grace_seconds=0)
    rows = Claim.objects.filter(tenant__slug="lender", state="active")
    while len(came) < count:
        now = time.monotonic() - begun
        assert now < LOST_SECONDS, f"{count - len(came)} claims of the lender are not in force"
        for pk in rows.values_list("pk", flat=True):
            came.setdefault(pk, now)
        time.sleep(POLL_SECONDS)
    times = list(came.values())
    return {"half s": quantile(times, 0.5), "last s": max(times)}


@contextmanager
def played_agents() -> Iterator[None]:
    """Let every node's agent report at once whatever it is to do as done, and be heard every second."""
    stop = threading.Event()

    def play(part: int) -> None:
        while not stop.is_set():
            behind = Node.objects.filter(observed_frame__lt=F("frame")).order_by("pk")
            found = [node for node in behind if node.pk % THREADS == part]
            for node in found:
                _obey(node)
            if not found:
                time.sleep(POLL_SECONDS)
        connection.close()

    def beat() -> None:
        while not stop.wait(1.0):
            Node.objects.update(last_seen_at=timezone.now())
        connection.close()

    threads = [threading.Thread(target=play, args=(part,)) for part in range(THREADS)]
    threads.append(threading.Thread(target=beat))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def check(count: int, preempt_by: str) -> None:
    """Check that all borrowers wait as they should, and that all sums agree.

    Raises AssertionError.
    """
    assert _count("borrower", "resuming" if preempt_by == "suspend" else "queued") == count
    assert not differences()


def _obey(node: Node) -> None:
    desired = desired_state(node)
    # Under the number of the frame that was read: later ones are not done yet.
    answers = [done(wanted) for wanted in desired.assignments]
    take_observed(node=node, frame=wire.Observed(frame=desired.frame, assignments=answers))


def _create(slug: str, count: int, *, gpu_count: int) -> None:
    tenant, pool = Tenant.objects.get(slug=slug), Pool.objects.get(name="default")
    for first in range(0, count, AT_ONCE):
        with transaction.atomic():
            for number in range(first, min(count, first + AT_ONCE)):
                create_claim(
                    principal=SYSTEM,
                    spec=ClaimSpec(
                        tenant=tenant, pool=pool, name=f"{slug}-{number}", gpu_count=gpu_count, core_request=100,
                        core_limit=100, memory_mib=GIB, when_over_quota="wait",
                    ),
                )  # fmt: skip


def _count(slug: str, state: str) -> int:
    return Claim.objects.filter(tenant__slug=slug, state=state).count()


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(POLL_SECONDS)
