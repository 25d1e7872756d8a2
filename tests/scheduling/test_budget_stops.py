"""Budgets that stop: notice before the end, the end at the moment, exemptions, and what goes on by itself."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from apps.accounting.services import budget_stops
from apps.accounting.tasks import stop_budgets
from apps.quotas.models import AuditEvent, Budget, BudgetPeriod
from apps.quotas.principals import SYSTEM
from apps.quotas.services.budgets import change_budget, create_budget
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.budgets import standing_of, watch_budgets
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, placed
from tests.racing import race
from tests.scheduling.clock import START, Clock

MINUTE = 60


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def stopping(cast: Cast, gpu_hours: str = "1", **facts: Any) -> Budget:
    facts = {"when_spent": "requeue", "grace_seconds": 10 * MINUTE, **facts}
    return create_budget(principal=SYSTEM, tenant=cast.acme, period="week", gpu_hours=Decimal(gpu_hours), **facts)


def actions(claim: Claim, *names: str) -> list[str]:
    rows = AuditEvent.objects.filter(object_id=str(claim.uid), action__in=[f"claim.{name}" for name in names])
    return list(rows.order_by("pk").values_list("action", flat=True))


def state(claim: Claim) -> str:
    claim.refresh_from_db()
    return claim.state


def live(cast: Cast, row: Budget) -> Any:
    return cast.vera.get(f"budgets/{row.pk}/").body["current"]


def watch_until_its_end(claim: Claim, clock: Clock, moment: datetime) -> tuple[datetime, datetime]:
    """Run every five seconds, as in production, and not at the moment itself; return the times of notice and end.

    Between the two, where nothing may happen, every minute.
    """
    notice_at = None
    clock.advance(minutes=69, seconds=47)
    while clock.now < moment + timedelta(minutes=2):
        stop_budgets()
        if notice_at is None and state(claim) == "active" and claim.reasons:
            notice_at = clock.now
            assert claim.reasons[0]["code"] == "budget-stop"
            assert "2026-06-15 13:20:00 UTC" in claim.reasons[0]["detail"]
        if state(claim) != "active":
            assert notice_at is not None
            return notice_at, clock.now
        between = notice_at is not None and moment - clock.now > timedelta(minutes=2)
        clock.advance(seconds=60 if between else 5)
    raise AssertionError("it goes on")


def test_a_budget_stops_at_100_percent_to_the_second_and_its_claims_go_on_in_the_next_period(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    row = stopping(cast)
    # 0.75 of a GPU: one GPU-hour is spent after 80 minutes.
    claim, _ = placed(cast, machine, core_request=75)
    other, _ = placed(cast, machine, core_request=20, tenant=cast.globex)
    moment = START + timedelta(minutes=80)
    assert live(cast, row)["expected_spent_at"] == "2026-06-15T13:20:00Z"
    notice_at, ended_at = watch_until_its_end(claim, clock, moment)
    assert live(cast, row)["stops_at"] == "2026-06-15T13:20:00Z"
    assert timedelta() <= (moment - timedelta(minutes=10)) - notice_at < timedelta(seconds=5)
    assert timedelta() <= ended_at - moment < timedelta(seconds=5)
    assert actions(claim, "notice", "preempt") == ["claim.notice", "claim.preempt"]
    clock.advance(seconds=5)
    machine.obey()
    overshoot = (standing_of(row, now=clock.now) or pytest.fail("no period")).spent_us - 100 * 3600 * 10**6
    # The agent confirmed 5 s after the end: at most 10 s of 0.75 GPU, or 0.2 % of the budget.
    assert 0 < overshoot <= 10 * 75 * 10**6
    run_round(cast.pool)
    assert (state(claim), claim.reasons[0]["code"]) == ("queued", "budget-exceeded")
    assert state(other) == "active"
    # Nothing is done at the period's end but to go on.
    clock.now = datetime(2026, 6, 22, tzinfo=UTC)
    clock.advance(seconds=5)
    stop_budgets()
    run_round(cast.pool)
    machine.obey()
    assert state(claim) == "active"
    assert stop_budgets() == 0
    assert actions(claim, "spared") == []
    assert_books_agree()


def test_who_is_released_is_not_queued_again(cast: Cast, machine: Machine, clock: Clock) -> None:
    stopping(cast, when_spent="release", grace_seconds=0)
    claim, _ = placed(cast, machine, core_request=100)
    clock.advance(hours=1)
    stop_budgets()
    machine.obey()
    assert (state(claim), claim.reasons[0]["detail"]) == (
        "released", "Released: its tenant's budget of GPU-hours is spent",
    )  # fmt: skip


@pytest.mark.parametrize(("when_spent", "status"), [("report", 201), ("refuse", 409)])
def test_what_only_reports_or_refuses_ends_nothing(
    cast: Cast, machine: Machine, clock: Clock, when_spent: str, status: int
) -> None:
    stopping(cast, when_spent=when_spent)
    claim, _ = placed(cast, machine, core_request=50)
    clock.advance(hours=3)
    assert stop_budgets() == 0
    assert (state(claim), claim.reasons) == ("active", [])
    asked = {"tenant": "acme", "core_request": 10, "memory_mib": 100}
    assert cast.max.post("claims/", asked).status == status
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_request": 60}).status == (200 if status == 201 else 409)


def test_spared_claims_go_on(cast: Cast, machine: Machine, clock: Clock) -> None:
    stopping(cast, spared_priority=5, grace_seconds=0)
    high, _ = placed(cast, machine, core_request=50, priority=5)
    low, _ = placed(cast, machine, core_request=50, priority=4)
    clock.advance(hours=1)
    stop_budgets()
    assert (state(high), state(low)) == ("active", "releasing")


def test_who_had_no_notice_in_time_has_the_whole_grace_and_a_newcomer_what_is_left_of_it(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    row = stopping(cast, "100")
    claim, _ = placed(cast, machine, core_request=50)
    clock.advance(hours=1)
    # Lowered below what is spent: nothing could be said before.
    change_budget(principal=SYSTEM, budget=row, gpu_hours=Decimal("0.25"), when_spent="requeue")
    stop_budgets()
    assert state(claim) == "active"
    clock.advance(minutes=9, seconds=59)
    stop_budgets()
    assert state(claim) == "active"
    clock.advance(seconds=1)
    stop_budgets()
    assert state(claim) == "releasing"


def test_a_newcomer_within_the_grace_ends_with_the_others(cast: Cast, machine: Machine, clock: Clock) -> None:
    stopping(cast)
    placed(cast, machine, core_request=50)
    clock.advance(minutes=111)
    stop_budgets()
    late, _ = placed(cast, machine, core_request=1)
    stop_budgets()
    assert late.uid in BudgetPeriod.objects.get().told_claims
    clock.advance(minutes=10)
    stop_budgets()
    assert state(late) == "releasing"


def test_more_hours_or_less_use_withdraw_the_notice(cast: Cast, machine: Machine, clock: Clock) -> None:
    row = stopping(cast)
    claim, _ = placed(cast, machine, core_request=50)
    big, _ = placed(cast, machine, core_request=50)
    clock.advance(minutes=55)
    stop_budgets()
    assert state(claim) == "active"
    assert [reason["code"] for reason in claim.reasons] == ["budget-stop"]
    change_budget(principal=SYSTEM, budget=row, gpu_hours=Decimal(2))
    stop_budgets()
    assert (state(claim), claim.reasons) == ("active", [])
    clock.advance(minutes=56)
    stop_budgets()
    # 0.15 GPU-hours are left: at half the rate for 18 minutes.
    release_claim(principal=SYSTEM, claim=big)
    machine.obey()
    stop_budgets()
    assert (state(claim), claim.reasons) == ("active", [])
    assert actions(claim, "notice", "spared") == ["claim.notice", "claim.spared"] * 2
    assert BudgetPeriod.objects.get().stops_at is None


def test_the_choice_is_made_by_the_api_and_bad_values_are_refused(cast: Cast, machine: Machine) -> None:
    asked = {"tenant": "acme", "period": "month", "gpu_hours": "10", "when_spent": "requeue", "grace_seconds": 60}
    made = cast.olga.post("budgets/", asked).body
    assert (made["when_spent"], made["grace_seconds"], made["spares_reserved"]) == ("requeue", 60, False)
    path = f"budgets/{made['id']}/"
    assert cast.olga.patch(path, {"spared_priority": 3}).body["spared_priority"] == 3
    assert cast.olga.patch(path, {"when_spent": "refuse"}).body["gpu_hours"] == "10.000"
    for bad in ({"when_spent": "explode"}, {"grace_seconds": -1}, {"spared_priority": 1001}):
        assert cast.olga.patch(path, bad).code == "invalid-fields"


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "control"])
@pytest.mark.django_db(transaction=True)
def test_many_workers_give_one_notice_and_one_end_to_each_claim(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool)
    claims = [placed(real_cast, machine, core_request=3)[0] for _ in range(8)]
    row = stopping(real_cast, "0", grace_seconds=3600)
    # Else the runs would wait for the first one's new row of the period, and not for the lock.
    watch_budgets()
    if not guarded:
        monkeypatch.setattr(
            budget_stops, "_lock", lambda pk: Budget.objects.select_related("tenant").filter(pk=pk).first()
        )
    race([stop_budgets] * 8)
    notices = sum(len(actions(claim, "notice")) for claim in claims)
    if not guarded:
        assert notices > len(claims)
        return
    assert notices == len(claims)
    change_budget(principal=SYSTEM, budget=row, grace_seconds=0)
    race([stop_budgets] * 8)
    assert [actions(claim, "preempt") for claim in claims] == [["claim.preempt"]] * len(claims)
    machine.obey()
    assert_books_agree()


def test_32_claims_at_once_on_a_spent_budget_are_all_refused(cast: Cast, machine: Machine, clock: Clock) -> None:
    stopping(cast)
    placed(cast, machine, core_request=100)
    waiting = [ask(cast, core_request=1) for _ in range(32)]
    clock.advance(hours=1)
    run_round(cast.pool)
    assert {(state(claim), claim.reasons[0]["code"]) for claim in waiting} == {("queued", "budget-exceeded")}
