"""Random replicas are killed under load: web servers, schedulers, workers, Valkey, and the primary database.

Afterwards everything that was acknowledged is there, once, and observed. What users saw meanwhile is printed.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from deploy.embedded import postgres
from tests.e2e.test_chaos import QUOTAS
from tests.e2e.test_random_kills import (
    CLIENTS,
    HEALED_SECONDS,
    Client,
    check_ledger,
    check_released,
    is_settled,
)
from tests.platform import until
from tests.replicas import databases
from tests.replicas.platform import GAP_SECONDS, Replicas, Seen

pytestmark = pytest.mark.serial

PARTS = ("server-1", "server-2", "scheduler-1", "scheduler-2", "worker-1", "worker-2", "valkey", "primary")
PAUSE_SECONDS = 2.5
LONGEST_GAPS = 5
# GPUs on which more is promised than they have, or other amounts than their assignments hold.
PROMISED_OTHERWISE = """
    SELECT gpu.uuid, gpu.core_used, gpu.memory_used_mib, sum(held_core), sum(held_memory_mib)
    FROM nodes_gpu gpu LEFT JOIN scheduling_assignment held ON held.gpu_id = gpu.id AND held.state <> 'released'
    GROUP BY gpu.id
    HAVING gpu.core_used > 100 OR gpu.memory_used_mib > gpu.memory_mib
        OR gpu.core_used <> coalesce(sum(held_core), 0) OR gpu.memory_used_mib <> coalesce(sum(held_memory_mib), 0)
"""
# Answers that a careful client repeats; no other error was seen. A connection is lost with the server that held it.
EXPECTED = {
    "200", "201", "202", "204", "409 quota-exceeded", "409 idempotency-key-in-flight", "503 database-unavailable",
    "RemoteDisconnected", "ConnectionResetError", "URLError", "IncompleteRead", "404 not-found",
}  # fmt: skip


@pytest.fixture
def clients(replicas: Replicas) -> Iterator[list[Client]]:
    tenant = replicas.new_tenant(f"kills-{uuid.uuid4().hex[:8]}")
    stop = threading.Event()
    made = [Client(replicas, tenant, number, stop) for number in range(CLIENTS)]
    yield made
    stop.set()
    for client in made:
        client.join()


def kill(replicas: Replicas, part: str, seen: Seen) -> None:
    """Kill a part, the primary once its standby follows and users were served by it.

    Two failovers without a moment between would be one outage of both durations.
    """
    name = part
    if part == "primary":
        until(lambda: databases.is_streaming(replicas.state, state="sync"), what="the standby to follow")
        follows = time.monotonic()
        until(lambda: seen.succeeded_at > follows, what="a request to succeed")
        name = replicas.primary
    seen.kills.append((time.monotonic(), part))
    with suppress(ProcessLookupError):
        replicas.kill(name)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(8, marks=pytest.mark.timeout(300)),
        pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(3000)]),
    ],
)
def test_what_was_acknowledged_is_there_after_kills_of_replicas(
    replicas: Replicas, clients: list[Client], kills: int
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311
    dice, killed = random.Random(seed), Counter[str]()  # noqa: S311
    replicas.seen = seen = Seen()
    for client in clients:
        client.start()
    begun = time.monotonic()
    # Each part once, in a random order, before any twice.
    for part in [*dice.sample(PARTS, k=len(PARTS)), *dice.choices(PARTS, k=kills)][:kills]:
        time.sleep(PAUSE_SECONDS * dice.uniform(0.5, 1.5))
        kill(replicas, part, seen)
        killed[part] += 1
    clients[0]._ended.set()
    for client in clients:
        client.join()
        assert client.failure is None
    replicas.seen = None
    report(seed, killed, clients, seen, seconds=time.monotonic() - begun)
    begun = time.monotonic()
    until(lambda: is_settled(replicas, clients), seconds=HEALED_SECONDS, what="all to be as acknowledged")
    print(f"healed in {time.monotonic() - begun:.1f} s")  # noqa: T201
    check_books(replicas, clients)
    assert set(seen.answers) <= EXPECTED
    assert seen.without_retry_after == 0


def report(seed: int, killed: Counter[str], clients: list[Client], seen: Seen, *, seconds: float) -> None:
    asked = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
    print(  # noqa: T201
        f"seed {seed}, {killed.total()} kills {dict(killed)} in {seconds:.0f} s, {asked}\n"
        f"answers {dict(seen.answers)}\n"
        f"longest answer {seen.longest:.2f} s, longest time without a success {seen.gap:.2f} s, with no answer but 503 "
        f"{seen.outage:.2f} s; {len(seen.gaps)} times longer than {GAP_SECONDS:.0f} s"
    )
    for gap in sorted(seen.gaps, key=lambda one: -one.seconds)[:LONGEST_GAPS]:
        print(f"{gap.seconds:.1f} s: killed {seen.killed_in(gap)}, answers {dict(gap.answers)}")  # noqa: T201
    without = [gap.seconds for gap in seen.gaps if "primary" not in seen.killed_in(gap)]
    print(f"the longest without a failover: {max(without, default=0.0):.1f} s")  # noqa: T201


def check_books(replicas: Replicas, clients: list[Client]) -> None:
    """Compare claims, quotas, GPUs and the ledger; nothing may be promised twice."""
    check_released(replicas, clients)
    live = [claim for client in clients for claim in client.known.values() if not claim.get("deleted")]
    tenant = clients[0]._tenant
    assert replicas.used(tenant) == {name: sum(one[field] for one in live) for name, field in QUOTAS.items()}
    check_ledger(replicas, database_url=databases.url(replicas.state))
    with databases.connect(replicas.state, databases.primary(replicas.state), dbname=postgres.DATABASE) as connection:
        assert connection.execute(PROMISED_OTHERWISE).fetchall() == []
