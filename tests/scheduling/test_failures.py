"""Isolation of failures: an exception over one claim or pool does not stop others, and is reported."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, Request
from apps.scheduling.management.commands.scheduler import Command
from apps.scheduling.models import Assignment, Claim, Round
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles import commits
from apps.scheduling.services.cycles.comparing import compare
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import rounds
from apps.scheduling.services.reclaiming import preemption
from apps.whatif.rounds import replay
from gpucloud import counters
from tests.cast import Cast, Machine, ask, assert_books_agree, give, give_plenty
from tests.scheduling.clock import Clock

# The core raises for claims of this size.
UNLUCKY = 13


@pytest.fixture
def failing_core(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Make the core raise; record the requests."""
    place, asked = Fleet.place, list[Request]()

    def raising(fleet: Fleet, request: Request, **how: Any) -> Any:
        if request.core_request == UNLUCKY:
            asked.append(request)
            raise ZeroDivisionError("as if by a mistake in the core")
        return place(fleet, request, **how)

    monkeypatch.setattr(Fleet, "place", raising)
    return asked


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=2)


def go(cache: PoolCache) -> None:
    for _ in rounds(cache, fence=lambda: None):
        pass


def states_and_reasons(*claims: Claim) -> list[tuple[str, list[str]]]:
    for claim in claims:
        claim.refresh_from_db()
    return [(claim.state, [reason["code"] for reason in claim.reasons]) for claim in claims]


def test_a_claim_over_which_the_core_raises_is_set_aside_and_the_others_are_placed(
    cast: Cast, machine: Machine, failing_core: list[Request], caplog: pytest.LogCaptureFixture
) -> None:
    before, bad, alike, after = (ask(cast, core_request=core) for core in (10, UNLUCKY, UNLUCKY, 20))
    with caplog.at_level(logging.ERROR):
        go(PoolCache(cast.pool))
    assert states_and_reasons(before, after) == [("assigned", []), ("assigned", [])]
    assert states_and_reasons(bad, alike) == [("queued", ["set-aside"])] * 2
    assert len(failing_core) == 1
    assert "ZeroDivisionError" in caplog.text
    assert str(bad.uid) in caplog.text
    assert_books_agree()
    for record in Round.objects.all():
        assert all(answer.agrees for answer in replay(record))


def test_it_is_asked_again_after_a_while_and_then_after_a_longer_one(
    clock: Clock, cast: Cast, machine: Machine, failing_core: list[Request]
) -> None:
    ask(cast, core_request=UNLUCKY)
    cache, asked = PoolCache(cast.pool), list[int]()
    for _ in range(40):
        cache.forget_refusals()
        go(cache)
        asked.append(len(failing_core))
        clock.advance(seconds=10)
    # At 0, 30, 90 and 210 seconds, and then 240 later.
    assert asked == [1] * 3 + [2] * 6 + [3] * 12 + [4] * 19
    assert not cache.has_due_claims(now=timezone.now().timestamp())
    assert cache.has_due_claims(now=(timezone.now() + timedelta(minutes=1)).timestamp())


def test_a_claim_that_was_changed_is_asked_at_once(cast: Cast, machine: Machine, failing_core: list[Request]) -> None:
    claim = ask(cast, core_request=UNLUCKY)
    cache = PoolCache(cast.pool)
    go(cache)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=UNLUCKY + 1, core_limit=UNLUCKY + 1))
    cache.refresh_claims({claim.pk})
    go(cache)
    assert states_and_reasons(claim) == [("assigned", [])]


def test_a_group_is_set_aside_as_a_whole_until_another_claim_of_it_comes(
    cast: Cast, machine: Machine, failing_core: list[Request]
) -> None:
    gang: dict[str, Any] = {"group": "ring", "group_size": 2}
    good, bad = ask(cast, core_request=10, **gang), ask(cast, core_request=UNLUCKY, **gang)
    alone = ask(cast, core_request=20)
    cache = PoolCache(cast.pool)
    go(cache)
    assert states_and_reasons(good, bad, alone) == [("queued", ["set-aside"])] * 2 + [("assigned", [])]
    cache.forget_refusals()
    go(cache)
    assert len(failing_core) == 1
    bad.change(core_request=14, core_limit=14)
    cache.refresh_claims({bad.pk})
    go(cache)
    assert {state for state, _ in states_and_reasons(good, bad)} == {"assigned"}


def test_the_queue_and_reclaim_do_not_ask_the_core_of_it_either(
    cast: Cast, machine: Machine, failing_core: list[Request]
) -> None:
    bad, waits = ask(cast, core_request=UNLUCKY), ask(cast, gpu_count=2, core_request=100, time_limit_seconds=60)
    go(PoolCache(cast.pool))
    first, second = (cast.olga.get(f"claims/{claim.uid}/").body for claim in (bad, waits))
    assert "Set aside" in first["estimate"]["detail"]
    assert first["queue_position"] is None
    assert second["state"] == "assigned"
    row, *_ = cast.olga.get("pools/default/queue/").body["results"]
    assert row["claim"] == str(bad.uid)
    assert preemption.drive() == 0


def test_claims_over_which_the_commit_raises_are_found_among_many(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [ask(cast, core_request=core) for core in (10, 11, UNLUCKY, 12, 9)]
    write = commits._write_assignments

    def raising(picks: list[commits.Pick], instances: dict[tuple[int, int], dict[str, int]]) -> None:
        write(picks, instances)
        if any(pick.claim.core_request == UNLUCKY for pick in picks):
            raise IntegrityError("as if by a row that must not be")

    monkeypatch.setattr(commits, "_write_assignments", raising)
    go(PoolCache(cast.pool))
    states = states_and_reasons(*claims)
    assert states[2] == ("queued", ["set-aside"])
    assert {state for state, _ in states[:2] + states[3:]} == {"assigned"}
    assert Assignment.objects.count() == 4
    assert_books_agree()


def test_where_every_commit_raises_no_claim_is_to_blame(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [ask(cast, core_request=10) for _ in range(4)]

    def raising(picks: list[commits.Pick], instances: object) -> None:
        raise IntegrityError("as if by a mistake in the commit")

    monkeypatch.setattr(commits, "_write_assignments", raising)
    with pytest.raises(IntegrityError):
        go(PoolCache(cast.pool))
    assert {state for state, _ in states_and_reasons(*claims)} == {"pending"}


class StoppingScheduler(Command):
    """The scheduler, stopped after so many checks for news."""

    looks = 0

    def _receive(self, *, seconds: float = 0) -> bool:
        self.looks += 1
        self.stopping = self.looks > 8
        return super()._receive(seconds=0.3 if seconds else 0)


@pytest.fixture
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.django_db(transaction=True)
def test_a_pool_over_which_something_raises_holds_up_no_other(
    real_cast: Cast, signals: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give_plenty(real_cast.acme)
    other = tenants.create_pool(principal=SYSTEM, name="other")
    Machine("gpu1", real_cast.pool)
    Machine("gpu2", other)
    keep, tries = PoolCache._keep_devices, list[str]()

    def raising(cache: PoolCache, *devices: Any) -> int:
        if cache.pool == real_cast.pool:
            tries.append("")
            raise RuntimeError("as if by a mistake in what is kept of the pool")
        return keep(cache, *devices)

    monkeypatch.setattr(PoolCache, "_keep_devices", raising)
    stuck, free = ask(real_cast), ask(real_cast, pool=other)
    with caplog.at_level(logging.ERROR):
        StoppingScheduler().handle()
    assert states_and_reasons(stuck, free) == [("pending", []), ("assigned", [])]
    assert "default failed: it is set aside for 1 s" in caplog.text
    # Once, and once more a second later: not in every cycle.
    assert 1 <= len(tries) <= 3
    counters.write()
    counted = {count.values: count.amount for count in counters.read() if count.name == counters.POOLS_SET_ASIDE.name}
    assert counted[("default",)] >= len(tries)


@pytest.mark.django_db(transaction=True)
def test_what_raises_over_no_pool_in_particular_is_logged_and_begun_anew(
    real_cast: Cast, signals: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool)
    claim, lead, tries = ask(real_cast), Command._lead, list[str]()

    def raising(command: Command) -> None:
        tries.append("")
        if len(tries) == 1:
            raise RuntimeError("as if by a mistake")
        lead(command)

    monkeypatch.setattr(Command, "_lead", raising)
    with caplog.at_level(logging.ERROR):
        StoppingScheduler().handle()
    assert "begins anew" in caplog.text
    assert states_and_reasons(claim) == [("assigned", [])]


def test_uncharged_claims_are_charged_in_one_transaction_each_within_its_quota(
    cast: Cast, django_assert_max_num_queries: Any
) -> None:
    Machine("gpu1", cast.pool, gpus=4)
    core = give(cast.acme, core_percent=1, memory_mib=None)["core_percent"]
    claims = [ask(cast, core_request=10, when_over_quota="wait") for _ in range(8)]
    assert not any(claim.charged_vgpus for claim in claims)
    core.change(hard=55)
    seen = list[int]()

    def fence() -> None:
        seen.append(1)

    for _ in rounds(PoolCache(cast.pool), fence=fence):
        pass
    states = [state for state, _ in states_and_reasons(*claims)]
    assert states.count("assigned") == 5
    assert [codes for state, codes in states_and_reasons(*claims) if state == "queued"] == [["quota-exceeded"]] * 3
    assert len(seen) < len(claims)
    assert_books_agree()


def test_what_was_charged_for_a_claim_that_lost_its_room_is_given_back(cast: Cast) -> None:
    machine = Machine("gpu1", cast.pool, gpus=2)
    core = give(cast.acme, core_percent=1, memory_mib=None)["core_percent"]
    claims = [ask(cast, core_request=60, when_over_quota="wait") for _ in range(2)]
    core.change(hard=200)
    picks = [commits.Pick(claim, (machine.gpu(0).pk,)) for claim in claims]
    outcome = commits.commit(picks, fence=lambda: None)
    assert [pick.claim for pick in outcome.placed] == claims[:1]
    assert [pick.claim for pick in outcome.lost] == claims[1:]
    assert states_and_reasons(*claims)[0] == ("assigned", [])
    assert [claim.charged_core_percent for claim in claims] == [60, 0]
    assert_books_agree()


def test_gpu_states_are_what_they_were_after_a_failure(
    cast: Cast, machine: Machine, failing_core: list[Request]
) -> None:
    ask(cast, core_request=10)
    ask(cast, core_request=UNLUCKY)
    cache = PoolCache(cast.pool)
    go(cache)

    def free(gpus: Any) -> dict[str, GpuState]:
        return {gpu.uuid: gpu for gpu in gpus}

    assert free(cache.fleet.gpus()) == free(device.state for device in cache.devices.values())
    assert compare(cache) == 0


def test_a_scheduler_that_failed_begins_anew_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, clock, begun = Command(), time.time, list[float]()

    def serve() -> None:
        begun.append(time.monotonic())
        if len(begun) > 1:
            scheduler.stopping = True
            return
        # Soon after the failure, so that the pause has begun.
        threading.Timer(0.2, lambda: monkeypatch.setattr(time, "time", lambda: clock() - 600)).start()
        raise ValueError("a first time")

    monkeypatch.setattr(scheduler, "_serve", serve)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(connection, "close", lambda: None)
    rescue = threading.Timer(15, scheduler._stop)
    rescue.start()
    scheduler.handle()
    rescue.cancel()
    assert len(begun) == 2
