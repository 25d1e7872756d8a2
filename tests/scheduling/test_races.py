"""Races on PostgreSQL, with a connection per racer; the dangerous one beside a control that fails without the guard."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import transaction
from django.db.models import F

from apps.nodes.models import Gpu
from apps.nodes.services.nodes import take_hello
from apps.quotas import idempotency
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging
from apps.quotas.services.quotas import change_quota
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Answer, Cast, Machine, ask, assert_books_agree, give, give_plenty, hello, placed, seen, used
from tests.racing import outcomes, race, without_constraint

RACERS = 24
ROOM = 10

pytestmark = pytest.mark.django_db(transaction=True)


def claim_ten_percent_each(cast: Cast, racers: int = RACERS) -> Counter[str]:
    give(cast.acme, core_percent=10 * ROOM, memory_mib=None)
    return outcomes(list(race([lambda: ask(cast, core_request=10, memory_mib=1)] * racers)))


def test_concurrent_claims_against_a_quota_that_holds_ten_grant_exactly_ten(real_cast: Cast) -> None:
    assert claim_ten_percent_each(real_cast) == {"Claim": ROOM, "QuotaExceeded": RACERS - ROOM}
    assert used(real_cast.acme)["core_percent"] == 10 * ROOM
    assert_books_agree()


@pytest.mark.long
def test_five_hundred_concurrent_claims_grant_exactly_ten(real_cast: Cast) -> None:
    assert claim_ten_percent_each(real_cast, 500) == {"Claim": ROOM, "QuotaExceeded": 500 - ROOM}
    assert_books_agree()


@pytest.fixture
def no_constraint(real_cast: Cast) -> Iterator[None]:
    """Drop the CHECK that backs the charge, for this test."""
    with without_constraint(ResourceQuota, "quota_never_exceeded"):
        yield


def naive_take(quota: ResourceQuota, amount: int, _whose: object) -> bool:
    """Read, check, write: unlike `charging`."""
    quota.refresh_from_db()
    if quota.hard is not None and quota.used + amount > quota.hard:
        return False
    quota.used += amount
    quota.save(update_fields=["used"])
    return True


@pytest.mark.usefixtures("no_constraint")
def test_control_the_race_is_real_without_the_guard(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charging, "_take", naive_take)
    assert claim_ten_percent_each(real_cast)["Claim"] > ROOM


def test_control_the_constraint_alone_stops_what_a_naive_charge_would_add_up(real_cast: Cast) -> None:
    quota = give(real_cast.acme, core_percent=100)["core_percent"]
    results = race([lambda: ResourceQuota.objects.filter(pk=quota.pk).update(used=F("used") + 10)] * 16)
    assert outcomes(list(results)) == {"int": 10, "IntegrityError": 6}


def test_two_rounds_at_once_give_the_last_room_of_a_gpu_to_one_claim(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    for _ in range(2):
        ask(real_cast, core_request=60)
    race([lambda: run_round(real_cast.pool)] * 4)
    assert Counter(Claim.objects.values_list("state", flat=True)) == {"assigned": 1, "queued": 1}
    assert machine.gpu().core_used == 60
    assert_books_agree()


def test_many_rounds_at_once_never_place_a_claim_twice(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool, gpus=4)
    for _ in range(8):
        ask(real_cast, core_request=50, memory_mib=GIB)
    race([lambda: run_round(real_cast.pool)] * 6)
    run_round(real_cast.pool)
    assert Counter(Claim.objects.values_list("state", flat=True)) == {"assigned": 8}
    assert Assignment.objects.count() == 8
    assert set(Gpu.objects.values_list("core_used", flat=True)) == {100}
    assert_books_agree()


def test_a_round_and_a_resize_never_promise_the_same_room(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    holder, _ = placed(real_cast, machine, core_request=40)
    ask(real_cast, core_request=60)

    def grow() -> Claim:
        return resize_claim(principal=SYSTEM, claim=holder, changes=ClaimChanges(core_request=100))

    grown, _ = race([grow, lambda: run_round(real_cast.pool)])
    assert machine.gpu().core_used == 100
    waiting = Claim.objects.exclude(pk=holder.pk).get()
    assert (isinstance(grown, NoRoom), waiting.state) in {
        (True, ClaimState.ASSIGNED),
        (False, ClaimState.QUEUED),
        (False, ClaimState.PENDING),
    }
    assert_books_agree()


def test_a_claim_resized_while_a_round_places_it_is_placed_as_it_is_wanted(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    claim = ask(real_cast, core_request=20)
    race(
        [
            lambda: resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=50)),
            lambda: run_round(real_cast.pool),
        ]
    )
    run_round(real_cast.pool)
    machine.obey()
    claim.refresh_from_db()
    assignment = claim.assignments.get()
    assert (claim.core_request, assignment.core_request, assignment.held_core) == (50, 50, 50)
    assert machine.gpu().core_used == 50
    assert_books_agree()


def test_a_release_and_a_late_report_give_back_once(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    claim, assignment = placed(real_cast, machine)

    def report() -> None:
        machine.say(seen(assignment, generation=1))

    race([lambda: release_claim(principal=SYSTEM, claim=claim), report, report])
    race([machine.obey] * 4)
    claim.refresh_from_db()
    assert claim.state == ClaimState.RELEASED
    assert machine.gpu().core_used == 0
    assert_books_agree()


def test_released_by_several_at_once_is_released_once(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    claim = ask(real_cast)
    results = race([lambda: release_claim(principal=SYSTEM, claim=claim)] * 8)
    assert outcomes(list(results)) == {"Claim": 8}
    assert_books_agree()


def test_a_release_and_a_round_leave_nothing_behind(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1)
    claim = ask(real_cast)
    race([lambda: release_claim(principal=SYSTEM, claim=claim), lambda: run_round(real_cast.pool)])
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == ClaimState.RELEASED
    assert machine.gpu().core_used == 0
    assert used(real_cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert_books_agree()


def test_waiting_claims_resized_in_opposite_ways_do_not_hold_each_others_quota(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    wide, tall = (ask(real_cast, core_request=50, memory_mib=50) for _ in range(2))
    turns: list[Callable[[], Claim]] = []
    for turn in range(8):
        small, large = (10, 90) if turn % 2 else (90, 10)
        turns += [
            partial(
                resize_claim, principal=SYSTEM, claim=wide, changes=ClaimChanges(core_request=small, memory_mib=large)
            ),
            partial(
                resize_claim, principal=SYSTEM, claim=tall, changes=ClaimChanges(core_request=large, memory_mib=small)
            ),
        ]
    assert outcomes(list(race(turns))) == {"Claim": len(turns)}
    assert_books_agree()


def test_a_hello_and_rounds_do_not_hold_each_other(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=8)
    claims = [ask(real_cast, core_request=10, memory_mib=1, gpu_count=8) for _ in range(6)]
    greet = hello("gpu1", gpus=8)
    results = race([lambda: take_hello(node=machine.node, hello=greet), lambda: run_round(real_cast.pool)] * 4)
    assert not [result for result in results if isinstance(result, Exception)]
    run_round(real_cast.pool)
    assert Claim.objects.filter(pk__in=[claim.pk for claim in claims], state="assigned").count() == 6


def test_the_same_idempotency_key_at_once_has_one_effect(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 10}
    results = race([lambda: real_cast.max.post("claims/", body, Idempotency_Key="once")] * 12)
    answers = [result for result in results if isinstance(result, Answer)]
    assert len(answers) == 12
    assert {answer.status for answer in answers} <= {201, 409}
    assert {answer.code for answer in answers if answer.status == 409} <= {"idempotency-key-in-flight"}
    assert {answer.headers["Retry-After"] for answer in answers if answer.status == 409} <= {"1"}
    assert len({answer.body["uid"] for answer in answers if answer.status == 201}) == 1
    assert Claim.objects.count() == 1


def test_a_finished_idempotency_key_is_answered_to_everybody_at_once(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 10}
    first = real_cast.max.post("claims/", body, Idempotency_Key="once")
    answers = race([lambda: real_cast.max.post("claims/", body, Idempotency_Key="once")] * 32)
    assert {(answer.status, answer.body["uid"]) for answer in answers} == {(201, first.body["uid"])}
    assert Claim.objects.count() == 1


@pytest.mark.parametrize(("finished", "status"), [(True, 201), (False, 409)], ids=["finished", "control: under way"])
def test_a_key_that_somebody_else_repeats_is_in_flight_only_before_its_first_answer(
    real_cast: Cast, finished: bool, status: int
) -> None:
    give_plenty(real_cast.acme)
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 10}
    if finished:
        real_cast.max.post("claims/", body, Idempotency_Key="once")
    locked, asked = threading.Event(), threading.Event()

    def repeat() -> None:
        with transaction.atomic():
            assert idempotency._lock(f"{real_cast.member.pk}\nonce")
            locked.set()
            asked.wait(timeout=30)

    def ask_meanwhile() -> Answer:
        locked.wait(timeout=30)
        try:
            return real_cast.max.post("claims/", body, Idempotency_Key="once")
        finally:
            asked.set()

    _, answer = race([repeat, ask_meanwhile])
    assert answer.status == status


def test_a_quota_lowered_while_it_is_charged_is_never_exceeded(real_cast: Cast) -> None:
    quota = give(real_cast.acme, core_percent=200, memory_mib=None)["core_percent"]
    results = race(
        [lambda: ask(real_cast, core_request=10, memory_mib=1)] * 20
        + [lambda: change_quota(principal=SYSTEM, quota=quota, hard=50)]
    )
    assert set(outcomes(list(results))) <= {"Claim", "QuotaExceeded", "ResourceQuota"}
    quota.refresh_from_db()
    assert quota.used <= 50 + quota.excess
    if quota.used >= 50:
        with pytest.raises(QuotaExceeded):
            ask(real_cast, core_request=1, memory_mib=1)
    assert_books_agree()
