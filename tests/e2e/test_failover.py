"""The primary PostgreSQL is killed while 64 clients race for a quota, and its standby is promoted.

With synchronous replication, nothing that was acknowledged is lost and nothing is granted twice. The control shows that
the race finds a loss: with asynchronous replication and a standby that lags, acknowledged claims are gone.
"""

import http.client
import threading
import time
import urllib.error
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from tests.e2e.test_random_kills import check_ledger
from tests.platform import Answer, until
from tests.replicas import databases
from tests.replicas.platform import Replicas

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

RACERS = 64
# Claims that the quota has room for; the racers want more.
ROOM = 200
CORE = 10
# Of a client's patience, for one request.
ANSWER_SECONDS = 60.0
# A request is answered or refused in this time on a busy machine, and never hangs.
LONGEST_ANSWER_SECONDS = 15.0
LAG_SECONDS = 0.5


@dataclass
class Race:
    """Answers to 64 clients."""

    granted: list[str] = field(default_factory=list)
    # By status, or the connection's end.
    answers: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    # 503s without Retry-After.
    silent: int = 0
    # Moments of granted claims, by the monotonic clock.
    moments: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, what: str, seconds: float, answer: Answer | None) -> None:
        with self.lock:
            self.answers[what] += 1
            self.longest = max(self.longest, seconds)
            if answer is not None and answer.status == 503 and "retry-after" not in answer.headers:
                self.silent += 1
            if answer is not None and answer.status == 201:
                self.granted.append(answer.body["uid"])
                self.moments.append(time.monotonic())


def run_race(replicas: Replicas, tenant: str, harm: Callable[[Race], None]) -> Race:
    """Have 64 clients create claims until the quota refuses each of them, and harm the database meanwhile."""
    race = Race()

    def ask() -> None:
        status = 0
        while status != 409:
            status = insist(replicas, tenant, race)

    with ThreadPoolExecutor(RACERS + 1) as threads:
        racers = [threads.submit(ask) for _ in range(RACERS)]
        harming = threads.submit(harm, race)
        for one in (*racers, harming):
            one.result()
    return race


def insist(replicas: Replicas, tenant: str, race: Race) -> int:
    """Repeat one request with its key until it is granted or the quota is exhausted; return the status."""
    body = {"tenant": tenant, "name": "racer", "core_request": CORE, "memory_mib": 16}
    key, deadline = uuid.uuid4().hex, time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        begun, answer = time.monotonic(), None
        try:
            answer = replicas.call("POST", "claims/", body, Idempotency_Key=key)
            what = str(answer.status)
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            what = type(error).__name__
        if answer is not None and answer.status == 409 and answer.body["type"] != "/problems/quota-exceeded":
            what = answer.body["type"]
        race.record(what, time.monotonic() - begun, answer)
        if what in ("201", "409"):
            return int(what)
        time.sleep(float(answer.headers.get("retry-after", "0.2")) if answer is not None else 0.2)
    raise AssertionError(f"no answer for {ANSWER_SECONDS} s: {race.answers}")


def kill_the_primary(replicas: Replicas, *, granted_alone: int = 0) -> Callable[[Race], None]:
    """Return the harm: the standby lags for a moment, then the primary is gone.

    `granted_alone`: the primary grants so many claims meanwhile, before others can exhaust the quota.
    """

    def harm(race: Race) -> None:
        until(lambda: len(race.granted) > ROOM // 4, what="a quarter of the quota to be granted")
        databases.partition(replicas.state)
        if granted_alone:
            most = len(race.granted) + granted_alone
            until(lambda: len(race.granted) >= most, what="claims that the standby does not get", longest_pause=0.01)
        else:
            time.sleep(LAG_SECONDS)
        replicas.kill(replicas.primary)

    return harm


def stored(replicas: Replicas, tenant: str) -> set[str]:
    """Return the uids of the tenant's claims, page by page."""
    uids, path = set[str](), f"claims/?tenant={tenant}&limit=200"
    while path:
        page = replicas.granted("GET", path)
        uids |= {claim["uid"] for claim in page["results"]}
        path = (page["next"] or "").partition("/api/v1/")[2]
    return uids


@pytest.fixture
def tenant(replicas: Replicas) -> Iterator[str]:
    """Make a tenant with room for so many claims; they would leave none on the GPUs to the platform's next test."""
    slug = replicas.new_tenant(f"race-{uuid.uuid4().hex[:8]}", core=ROOM * CORE)
    yield slug
    for uid in stored(replicas, slug):
        replicas.granted("DELETE", f"claims/{uid}/")
    until(lambda: not any(replicas.used(slug).values()), what="the claims to be released")


def report(race: Race) -> None:
    gap = max(later - sooner for sooner, later in zip(race.moments, race.moments[1:], strict=False))
    print(  # noqa: T201
        f"{len(race.granted)} granted, answers {dict(race.answers)}, longest answer {race.longest:.2f} s, "
        f"longest time without a granted claim {gap:.2f} s"
    )


def test_a_failover_grants_nothing_twice_and_loses_nothing(replicas: Replicas, tenant: str) -> None:
    before = replicas.primary
    race = run_race(replicas, tenant, kill_the_primary(replicas))
    report(race)
    assert replicas.primary != before
    uids = stored(replicas, tenant)
    assert set(race.granted) == uids
    assert len(race.granted) == len(uids) == ROOM
    assert replicas.used(tenant)["core_percent"] == ROOM * CORE
    check_ledger(replicas, database_url=databases.url(replicas.state))
    # While the database was away clients were told to come again: no internal error, no hang.
    assert race.answers["503"] > 0
    assert set(race.answers) <= {"201", "409", "503", "/problems/idempotency-key-in-flight"}
    assert race.silent == 0
    assert race.longest < LONGEST_ANSWER_SECONDS


def test_without_synchronous_replication_acknowledged_claims_are_lost(replicas: Replicas, tenant: str) -> None:
    """The control of the test above."""
    until(lambda: databases.is_streaming(replicas.state), what="the new standby to follow")
    databases.require_standby(replicas.state, standby="")
    try:
        race = run_race(replicas, tenant, kill_the_primary(replicas, granted_alone=10))
    finally:
        # The race can be over before the killed one is back.
        until(lambda: databases.is_streaming(replicas.state), what="the new standby to follow")
        databases.require_standby(replicas.state)
    report(race)
    assert set(race.granted) - stored(replicas, tenant)
    assert len(race.granted) > ROOM
