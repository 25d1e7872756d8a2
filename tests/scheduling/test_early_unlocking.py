"""Posts of claims lock their tenant's quotas only for the charge, and answer when the commit is durable."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging_last
from apps.quotas.services.charging_last import Charge
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from gpucloud import commits
from tests.cast import Cast, assert_books_agree, give, used
from tests.racing import race, without_constraint

pytestmark = pytest.mark.django_db(transaction=True)

BODY = {"tenant": "acme", "name": "train", "core_request": 10, "core_limit": 10, "memory_mib": 1}
PATIENCE_SECONDS = 20


def post(cast: Cast, **more: Any) -> Any:
    return cast.max.post("claims/", BODY | more)


def read_without_lock(charge: Charge) -> set[int]:
    """Read which quotas are short, unlike the statement without a lock."""
    used = dict(ResourceQuota.objects.values_list("pk", "used"))
    gate.wait(PATIENCE_SECONDS)
    wanted = {quota.pk: (quota.hard, charge.amounts[quota.resource]) for quota in charge.quotas}
    return {pk for pk, (hard, amount) in wanted.items() if hard is not None and used[pk] > hard - amount}


def charge_unconditionally(charge: Charge) -> int:
    for quota in charge.quotas:
        ResourceQuota.objects.filter(pk=quota.pk).update(used=F("used") + charge.amounts[quota.resource])
    return len(charge.quotas)


gate = threading.Barrier(8)


def test_posts_race_for_the_last_units_and_get_exactly_these(real_cast: Cast) -> None:
    give(real_cast.acme, core_percent=50, memory_mib=None, vgpus=100)
    answers = race([partial(post, real_cast)] * 16)
    assert Counter(answer.status for answer in answers) == {201: 5, 409: 11}
    assert used(real_cast.acme)["core_percent"] == 50
    assert Claim.objects.count() == 5
    assert_books_agree()
    assert not differences()


def test_control_without_lock_and_condition_more_are_granted(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    give(real_cast.acme, core_percent=10, memory_mib=None)
    monkeypatch.setattr(Charge, "_lock", read_without_lock)
    monkeypatch.setattr(Charge, "_charge", charge_unconditionally)
    with without_constraint(ResourceQuota, "quota_never_exceeded"):
        answers = race([partial(post, real_cast)] * gate.parties)
        assert Counter(answer.status for answer in answers)[201] > 1
        assert used(real_cast.acme)["core_percent"] > 10


def test_all_that_is_short_is_said_and_nothing_is_charged(real_cast: Cast) -> None:
    give(real_cast.acme, core_percent=9, memory_mib=0, vgpus=1)
    answer = post(real_cast)
    assert answer.status == 409
    assert "Core quota exceeded" in answer.body["detail"]
    assert "Memory quota exceeded" in answer.body["detail"]
    assert set(used(real_cast.acme).values()) == {0}
    assert not Claim.objects.exists()
    assert not differences()


def test_a_charge_that_waits_for_a_refund_gets_what_it_left(real_cast: Cast) -> None:
    """The statement begins while the quota is full, and has to read it as it is after the wait."""
    give(real_cast.acme, core_percent=10, memory_mib=None)
    first = post(real_cast).body["uid"]
    refunded = threading.Event()

    def release() -> None:
        with transaction.atomic():
            release_claim(principal=SYSTEM, claim=Claim.objects.get(uid=first))
            refunded.set()
            waits_for_a_lock()

    def charge() -> Any:
        assert refunded.wait(PATIENCE_SECONDS)
        return post(real_cast)

    _, answer = race([release, charge])
    assert answer.status == 201
    assert used(real_cast.acme)["core_percent"] == 10
    assert not differences()


def waits_for_a_lock() -> None:
    """Wait until another session waits for a lock."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            if cursor.fetchone():
                return
        time.sleep(0.02)
    raise AssertionError("nobody waits")


@pytest.fixture
def waiting_charge(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Have the first charge stop at its beginning until the second event is set; the first event says that it has."""
    come, go, take = threading.Event(), threading.Event(), Charge.take

    def wait_and_take(charge: Charge) -> None:
        if not come.is_set():
            come.set()
            assert go.wait(PATIENCE_SECONDS)
        take(charge)

    monkeypatch.setattr(Charge, "take", wait_and_take)
    yield come, go
    go.set()


def post_beside(cast: Cast, events: tuple[threading.Event, threading.Event], key: str) -> list[Any]:
    """Post, and when that has done all but its charge, post again; let the first go on afterwards."""
    come, go = events

    def first() -> Any:
        return cast.max.post("claims/", BODY, Idempotency_Key=key)

    def second() -> Any:
        assert come.wait(PATIENCE_SECONDS)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        try:
            return post(cast)
        finally:
            go.set()
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")

    return race([first, second])


def test_a_post_locks_no_quota_until_all_else_is_written(
    real_cast: Cast, waiting_charge: tuple[threading.Event, threading.Event]
) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=None)
    answers = post_beside(real_cast, waiting_charge, "one")
    assert [answer.status for answer in answers] == [201, 201]
    assert not differences()


def test_control_a_charge_before_the_rest_keeps_the_others_waiting(
    real_cast: Cast, waiting_charge: tuple[threading.Event, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=None)

    def charge_first(*args: Any, **kwargs: Any) -> Charge | None:
        charge = prepare(*args, **kwargs)
        assert charge is not None
        charge._lock()
        return charge

    prepare: Callable[..., Charge | None] = charging_last.prepare
    monkeypatch.setattr(charging_last, "prepare", charge_first)
    answers = post_beside(real_cast, waiting_charge, "one")
    assert [answer.status for answer in answers] == [201, 503]


# Durability


def position(which: str) -> int:
    """Return a position of the database's log in bytes: `insert` or `flush`."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_wal_lsn_diff(pg_current_wal_{which}_lsn(), '0/0')::bigint")
        return int(cursor.fetchone()[0])


@pytest.fixture
def durable_session(real_cast: Cast) -> Iterator[Cast]:
    """Have commits of this session wait for the disk, as in an installation; the tests' database does not."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
    yield real_cast
    connection.close()


def test_the_answer_comes_when_the_commit_is_on_disk(durable_session: Cast) -> None:
    give(durable_session.acme, core_percent=100, memory_mib=None)
    committed: list[int] = []
    with commits.ending_early() as ending:
        ending.steps.append(lambda: transaction.on_commit(lambda: committed.append(position("insert"))))
        ResourceQuota.objects.update(used=0)
    assert position("flush") >= committed[0]
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone()[0] == "on"


def test_control_the_commit_itself_does_not_wait(durable_session: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    give(durable_session.acme, core_percent=100, memory_mib=None)
    monkeypatch.setattr(commits, "FLUSH", "SELECT 1, pg_xact_status(%s::xid8), pg_postmaster_start_time()")
    behind = []
    # The server writes its log every 200 ms by itself.
    for number in range(5):
        with commits.ending_early():
            ResourceQuota.objects.update(used=number)
        behind.append(position("flush") < position("insert"))
    assert any(behind)


@pytest.mark.parametrize(
    ("changed", "other"),
    [
        ("pg_xact_status(%s::xid8)", "'aborted' || left(%s, 0)"),
        ("pg_postmaster_start_time()", "now()"),
        # A promoted server has not come to this transaction yet.
        ("%s::xid8", "(%s::text::numeric + 1000000)::text::xid8"),
    ],
)
def test_a_commit_that_another_server_may_not_have_is_not_acknowledged(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, changed: str, other: str
) -> None:
    give(real_cast.acme, core_percent=100, memory_mib=None)
    monkeypatch.setattr(commits, "FLUSH", commits.FLUSH.replace(changed, other))
    answer = post(real_cast)
    assert answer.status == 503
    assert "Retry-After" in answer.headers
