"""Budgets of GPU-hours: counted amounts, warnings, and refusals."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from apps.quotas.models import AuditEvent, Budget, BudgetPeriod
from apps.quotas.principals import SYSTEM
from apps.quotas.services.budgets import create_budget, period_at
from apps.scheduling import tasks
from apps.scheduling.models import Claim
from apps.scheduling.services.charging import budgets
from apps.scheduling.services.charging.budgets import BudgetExceeded, Standing, standing_of
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, placed
from tests.racing import outcomes, race
from tests.scheduling.clock import START, Clock

ASKED = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def budget(cast: Cast, gpu_hours: str = "10", period: str = "week", **facts: Any) -> Budget:
    return create_budget(principal=SYSTEM, tenant=cast.acme, period=period, gpu_hours=Decimal(gpu_hours), **facts)


def warnings_sent() -> list[tuple[str, int]]:
    rows = AuditEvent.objects.filter(action__in=("budget.warning", "budget.spent")).order_by("pk")
    return [(row.action, (row.after or {})["threshold_percent"]) for row in rows]


def spent(cast: Cast, row: Budget) -> str:
    return str(cast.vera.get(f"budgets/{row.pk}/").body["current"]["gpu_hours_spent"])


def test_each_threshold_is_told_once_in_each_period(cast: Cast, machine: Machine, clock: Clock) -> None:
    budget(cast)
    claim, _ = placed(cast, machine, core_request=100)
    seen = []
    for hours in (7.9, 0.2, 1, 0.5, 0.5, 5):
        clock.advance(hours=hours)
        tasks.watch_budgets()
        tasks.watch_budgets()
        seen.append(len(warnings_sent()))
    assert seen == [0, 1, 1, 2, 3, 3]
    assert warnings_sent() == [("budget.warning", 80), ("budget.warning", 95), ("budget.spent", 100)]
    clock.now = datetime(2026, 6, 22, tzinfo=UTC)
    clock.advance(hours=8)
    tasks.watch_budgets()
    assert warnings_sent()[3:] == [("budget.warning", 80)]
    row = cast.anna.get("audit/?action=budget.warning").body["results"][0]
    assert row["after"]["gpu_hours_spent"] == "8.000000"
    assert cast.gus.get("audit/?action=budget.warning").body["results"] == []
    claim.refresh_from_db()
    assert claim.state == "active"


def test_what_passes_several_thresholds_between_two_looks_is_told_of_each(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    budget(cast)
    placed(cast, machine, core_request=100)
    clock.advance(hours=11)
    assert [tasks.watch_budgets(), tasks.watch_budgets()] == [3, 0]


def test_a_spent_budget_refuses_new_claims_and_growth_and_ends_nothing(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    row = budget(cast)
    claim, _ = placed(cast, machine, core_request=50)
    clock.advance(hours=19, minutes=59)
    assert cast.max.post("claims/", ASKED).status == 201
    clock.advance(minutes=1)
    answer = cast.max.post("claims/", ASKED)
    assert (answer.status, answer.code) == (409, "budget-exceeded")
    facts = {name: answer.body[name] for name in ("budget", "period", "gpu_hours", "gpu_hours_spent", "ends_at")}
    assert facts == {
        "budget": row.pk, "period": "week", "gpu_hours": "10.000", "gpu_hours_spent": "10.000000",
        "ends_at": "2026-06-22T00:00:00Z",
    }  # fmt: skip
    assert cast.max.post("claims/?dry_run=true", ASKED).code == "budget-exceeded"
    assert cast.max.post("claims/", {**ASKED, "when_over_quota": "wait"}).code == "budget-exceeded"
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_request": 60}).code == "budget-exceeded"
    # Memory is not in GPU-hours; a decrease is always allowed.
    assert cast.max.patch(f"claims/{claim.uid}/", {"memory_mib": 9000}).status == 200
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_request": 40}).status == 200
    assert cast.gus.post("claims/", {**ASKED, "tenant": "globex"}).status == 201
    claim.refresh_from_db()
    assert claim.state == "active"
    assert_books_agree()


def test_what_waits_in_the_queue_is_not_placed_on_a_spent_budget_until_the_next_period(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    budget(cast, "1")
    holder, _ = placed(cast, machine, core_request=100, gpu_count=4)
    waiting = ask(cast)
    clock.advance(minutes=15)
    release_claim(principal=SYSTEM, claim=holder)
    machine.obey()
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.reasons[0]["code"]) == ("queued", "budget-exceeded")
    assert machine.gpu().core_used == 0
    clock.advance(days=7)
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert waiting.state == "assigned"
    assert_books_agree()


def test_a_queue_that_waits_for_a_budget_is_left_alone_and_the_budget_counted_once(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(cast, "1")
    placed(cast, machine, core_request=50)
    waiting = [ask(cast) for _ in range(3)]
    clock.advance(hours=3)
    assert run_round(cast.pool) is not None
    versions = [Claim.objects.get(pk=claim.pk).version for claim in waiting]
    counted = []

    def counting(*args: Any, **facts: Any) -> Standing | None:
        counted.append(args)
        return standing_of(*args, **facts)

    monkeypatch.setattr(budgets, "standing_of", counting)
    clock.advance(hours=1)  # running claims keep spending
    assert run_round(cast.pool) is None
    assert [Claim.objects.get(pk=claim.pk).version for claim in waiting] == versions
    assert len(counted) == 1


def test_more_hours_let_claims_in_again_and_begin_the_warnings_anew(cast: Cast, machine: Machine, clock: Clock) -> None:
    row = budget(cast)
    placed(cast, machine, core_request=100)
    clock.advance(hours=10)
    tasks.watch_budgets()
    assert cast.anna.patch(f"budgets/{row.pk}/", {"gpu_hours": "12"}).code == "role-missing"
    assert cast.olga.patch(f"budgets/{row.pk}/", {"gpu_hours": "12"}, If_Match='"9"').code == "stale-version"
    assert cast.olga.patch(f"budgets/{row.pk}/", {"gpu_hours": "12"}).body["current"]["percent"] == 83
    assert cast.max.post("claims/", ASKED).status == 201
    tasks.watch_budgets()
    assert warnings_sent()[3:] == [("budget.warning", 80)]


def test_what_was_counted_for_good_and_what_is_counted_now_are_what_a_report_says(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    row = budget(cast, "1000", "month")
    claims = [placed(cast, machine, core_request=core)[0] for core in (7, 13)]
    for step in range(8):
        clock.advance(minutes=7 * step, seconds=13, microseconds=step)
        if step == 3:
            resize_claim(principal=SYSTEM, claim=claims[0], changes=ClaimChanges(core_request=29))
        if step == 5:
            release_claim(principal=SYSTEM, claim=claims[1])
            machine.obey()
        if step % 2:
            tasks.watch_budgets()
        report = cast.vera.get("reports/usage/").body["total"]["gpu_hours_reserved"]
        assert spent(cast, row) == report
    counted = BudgetPeriod.objects.get()
    assert 0 < counted.counted_us < (standing_of(row, now=clock.now) or pytest.fail("no period")).spent_us
    assert counted.counted_until > START


def test_a_list_shows_what_was_counted_last(cast: Cast, machine: Machine, clock: Clock) -> None:
    budget(cast)
    placed(cast, machine, core_request=100)
    clock.advance(hours=2)
    tasks.watch_budgets()
    (row,) = cast.vera.get("budgets/").body["results"]
    assert row["current"]["gpu_hours_spent"] == "1.916667"
    assert row["current"]["as_of"] == "2026-06-15T13:55:00Z"


def test_a_custom_budget_counts_between_its_two_moments_only(cast: Cast, machine: Machine, clock: Clock) -> None:
    times = {"starts_at": START + timedelta(hours=1), "ends_at": START + timedelta(hours=3)}
    row = budget(cast, "0.5", "custom", **times)
    placed(cast, machine, core_request=50)
    clock.advance(minutes=30)
    assert cast.vera.get(f"budgets/{row.pk}/").body["current"] is None
    assert tasks.watch_budgets() == 0
    clock.advance(minutes=90)
    with pytest.raises(BudgetExceeded):
        ask(cast, core_request=10)
    clock.advance(hours=1)
    assert ask(cast, core_request=10).state == "pending"


@pytest.mark.parametrize(
    ("period", "now", "begin", "end"),
    [
        ("week", "2026-06-15T00:00:00+00:00", "2026-06-15", "2026-06-22"),
        ("week", "2026-06-21T23:59:59+00:00", "2026-06-15", "2026-06-22"),
        ("week", "2027-01-01T12:00:00+00:00", "2026-12-28", "2027-01-04"),
        ("month", "2026-12-31T23:59:59+00:00", "2026-12-01", "2027-01-01"),
        ("month", "2028-02-29T00:00:00+00:00", "2028-02-01", "2028-03-01"),
    ],
)
def test_weeks_begin_on_monday_and_months_on_the_first(period: str, now: str, begin: str, end: str) -> None:
    bounds = period_at(Budget(period=period), datetime.fromisoformat(now))
    assert bounds is not None
    assert [moment.isoformat() for moment in bounds] == [f"{begin}T00:00:00+00:00", f"{end}T00:00:00+00:00"]


def test_a_budget_of_nothing_grants_nothing(cast: Cast, machine: Machine) -> None:
    budget(cast, "0")
    assert cast.max.post("claims/", ASKED).code == "budget-exceeded"


def test_a_tenant_has_one_budget_for_a_period(cast: Cast, machine: Machine) -> None:
    asked = {"tenant": "acme", "period": "month", "gpu_hours": "100.5"}
    made = cast.olga.post("budgets/", asked)
    assert (made.status, made.body["gpu_hours"]) == (201, "100.500")
    assert cast.olga.post("budgets/", asked).code == "name-taken"
    assert cast.anna.post("budgets/", asked).code == "role-missing"
    assert cast.olga.delete(f"budgets/{made.body['id']}/").status == 204


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({"gpu_hours": 1.5}, "gpu_hours"),
        ({"gpu_hours": "-1"}, "gpu_hours"),
        ({"period": "year"}, "period"),
        ({"period": "custom"}, "ends_at"),
        ({"period": "custom", "starts_at": "2026-02-01T00:00:00Z", "ends_at": "2026-01-01T00:00:00Z"}, "ends_at"),
        ({"starts_at": "2026-02-01T00:00:00Z"}, "starts_at"),
    ],
)
def test_a_senseless_budget_is_refused(cast: Cast, facts: dict[str, Any], field: str) -> None:
    answer = cast.olga.post("budgets/", {"tenant": "acme", "period": "month", "gpu_hours": "1", **facts})
    assert answer.code == "invalid-fields"
    assert field in answer.body["errors"]


@pytest.mark.django_db(transaction=True)
def test_many_workers_who_look_at_once_warn_once(real_cast: Cast) -> None:
    row = budget(real_cast, "0")
    told_by_each = race([tasks.watch_budgets] * 12)
    assert sorted(told_by_each) == [0] * 11 + [3]
    assert warnings_sent() == [("budget.warning", 80), ("budget.warning", 95), ("budget.spent", 100)]
    assert BudgetPeriod.objects.get().budget == row


def last_of_a_budget(cast: Cast, clock: Clock) -> tuple[Counter[str], Counter[str]]:
    """Let 32 claims ask at once a minute before a budget is spent, and 32 a minute after; return both outcomes.

    Workers count at the same time, so that hours move from the claims to the stored sum while they are read.
    """
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool)
    budget(cast, "1")
    placed(cast, machine, core_request=100, memory_mib=100)
    asks = [partial(ask, cast, core_request=1, memory_mib=1)] * 32
    both = []
    for minutes in (59, 2):
        clock.advance(minutes=minutes)
        results = race([*asks[:16], *[tasks.watch_budgets] * 4, *asks[16:]], at_once=36)
        both.append(outcomes([one for one in results if not isinstance(one, int)]))
    return both[0], both[1]


@pytest.mark.django_db(transaction=True)
def test_claims_at_once_for_the_last_of_a_budget_start_until_it_is_spent_and_none_after(
    real_cast: Cast, clock: Clock
) -> None:
    """A budget counts hours that have passed: what runs may exceed it, and nothing new begins once it is spent."""
    assert last_of_a_budget(real_cast, clock) == (Counter(Claim=32), Counter(BudgetExceeded=32))
    # Granted before, and not placed yet: they wait for the next period or a larger budget.
    run_round(real_cast.pool)
    waiting = Claim.objects.filter(state="queued")
    assert waiting.count() == 32
    assert {claim.reasons[0]["code"] for claim in waiting} == {"budget-exceeded"}
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_control_with_the_count_of_the_last_look_they_start_after_it_is_spent(
    real_cast: Cast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "_reserved_us", lambda *_: 0)
    assert last_of_a_budget(real_cast, clock)[1]["Claim"] == 32
