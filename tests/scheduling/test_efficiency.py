"""Efficiency: allocated less used GPU-hours, counted in SQL, by person, claim, tenant and pool."""

import csv
import io
from datetime import timedelta
from decimal import Decimal
from time import perf_counter
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.accounting import tasks
from apps.accounting.services import allocations
from apps.accounting.services.efficiency import efficiency as allocated
from apps.quotas.models import Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.reservations.clock import drive
from apps.scheduling.models import AllocatedDay, AllocatedHour
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Api, Cast, Machine, give, give_plenty, placed
from tests.matrix import seeds
from tests.scheduling.clock import Clock
from tests.scheduling.test_reserved_hours import STEPS, History
from tests.scheduling.test_usage_reports import measure, report


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def count() -> None:
    tasks.roll_up_usage()
    tasks.roll_up_allocations()


def efficiency(who: Api, query: str = "") -> dict[str, Any]:
    answer = who.get(f"reports/efficiency/?{query}")
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.body
    return body


def hours(reserved: float, used: float, percent: float | None) -> dict[str, Any]:
    unused = round(reserved - used, 3)
    return {
        "gpu_hours_reserved": reserved, "gpu_hours_used": used, "gpu_hours_unused": unused, "percent": percent,
    }  # fmt: skip


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in hours(0, 0, 0)}


def by(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: numbers(row) for row in rows}


def example(cast: Cast, machine: Machine, clock: Clock) -> None:
    """Let Max hold half of two GPUs for two hours and use 40 % of one for 15 minutes; globex a quarter for one hour."""
    _, assignment = placed(cast, machine, principal=cast.member, name="half", core_request=50, gpu_count=2)
    measure(assignment.uid, clock.now, seconds=900, core_percent=40)
    clock.advance(hours=1)
    small, other = placed(cast, machine, tenant=cast.globex, name="quarter", core_request=25)
    measure(other.uid, clock.now, seconds=360, core_percent=25)
    clock.advance(hours=1)
    release_claim(principal=SYSTEM, claim=small)
    machine.obey()
    count()


def test_the_figures_are_those_computed_by_hand(cast: Cast, machine: Machine, clock: Clock) -> None:
    example(cast, machine, clock)
    # 2 × 50 % × 2 h, and 40 % × 0.25 h of it; 25 % × 1 h, and 25 % × 0.1 h of it.
    half, quarter = hours(2.0, 0.1, 5.0), hours(0.25, 0.025, 10.0)
    for group, names in {
        "person": ("user:max", "system"), "tenant": ("acme", "globex"), "claim": ("half", "quarter"),
    }.items():  # fmt: skip
        for within in ("day", "week", "30days"):
            body = efficiency(cast.olga, f"by={group}&range={within}")
            assert [row["name"] for row in body["rows"]] == list(names)
            assert by(body["rows"]) == dict(zip(names, (half, quarter), strict=True))
            assert body["total"] == hours(2.25, 0.125, 5.6)
    assert by(efficiency(cast.olga, "by=pool")["rows"]) == {"default": hours(2.25, 0.125, 5.6)}
    trend = efficiency(cast.olga, "range=day")["trend"]
    assert len(trend) == 24
    assert [numbers(row) for row in trend[-4:]] == [
        hours(0.0, 0.0, None), hours(1.0, 0.1, 10.0), hours(1.25, 0.025, 2.0), hours(0.0, 0.0, None),
    ]  # fmt: skip
    days = efficiency(cast.olga, "range=30days")["trend"]
    assert (len(days), days[-1]["at"], days[-1]["gpu_hours_reserved"]) == (30, "2026-06-15T00:00:00Z", 2.25)


def test_a_claim_names_its_owner_and_their_token(cast: Cast, machine: Machine, clock: Clock) -> None:
    example(cast, machine, clock)
    (row,) = efficiency(cast.vera, "by=claim")["rows"]
    assert (row["kind"], row["tenant"], row["pool"]) == ("claim", "acme", "default")
    assert row["owner"] == "user:max via token member's"
    assert [row["name"] for row in efficiency(cast.vera, "by=claim&person=user:max")["rows"]] == ["half"]
    assert efficiency(cast.vera, "by=claim&person=user:vera")["rows"] == []


def test_readers_see_their_tenants_only(cast: Cast, machine: Machine, clock: Clock) -> None:
    example(cast, machine, clock)
    for group, names in {"person": ["system"], "tenant": ["globex"], "claim": ["quarter"], "pool": ["default"]}.items():
        body = efficiency(cast.gus, f"by={group}")
        assert [row["name"] for row in body["rows"]] == names
        assert body["total"] == hours(0.25, 0.025, 10.0)
        assert sum(row["gpu_hours_reserved"] for row in body["trend"]) == 0.25
    assert cast.gus.get("reports/efficiency/?tenant=acme").code == "not-found"
    assert efficiency(cast.gus, "person=user:max")["rows"] == []
    assert cast.nobody.get("reports/efficiency/").status == 401


def test_tenant_pool_and_limit_narrow_the_rows_and_the_totals_stay(cast: Cast, machine: Machine, clock: Clock) -> None:
    example(cast, machine, clock)
    tenants.create_pool(principal=SYSTEM, name="empty")
    assert efficiency(cast.olga, "tenant=acme")["total"]["gpu_hours_reserved"] == 2.0
    assert efficiency(cast.olga, "pool=empty")["rows"] == []
    body = efficiency(cast.olga, "by=claim&limit=1")
    assert ([row["name"] for row in body["rows"]], body["more"]) == (["half"], True)
    assert body["total"]["gpu_hours_reserved"] == 2.25


def test_what_was_resized_counts_from_its_moment_and_counting_again_changes_nothing(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim, _ = placed(cast, machine, core_request=20)
    clock.advance(hours=11.5)
    give(cast.acme, pool=cast.pool, core_percent=None)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=60))
    machine.obey()
    clock.advance(hours=1)
    for _ in range(3):
        count()
    # 0.2 × 11.5 + 0.6 × 0.5 before midnight, 0.6 × 0.5 after it.
    assert list(AllocatedDay.objects.order_by("at").values_list("reserved_ms", flat=True)) == [9_360_000, 1_080_000]
    assert AllocatedHour.objects.count() == 13
    clock.advance(hours=72)
    count()
    assert sum(AllocatedDay.objects.values_list("reserved_ms", flat=True)) == 3_600_000 * Decimal("46.1")
    assert not AllocatedHour.objects.filter(at__lt=clock.now - timedelta(hours=49)).exists()


def test_an_unclaimed_reservation_is_waste_and_its_claims_count_once(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    begin = (clock.now + timedelta(hours=1)).isoformat()
    booking = {
        "tenant": "acme", "name": "exam", "gpu_count": 1, "core_request": 100, "memory_mib": 8 * GIB,
        "start_at": begin, "end_at": (clock.now + timedelta(hours=9)).isoformat(), "grace_seconds": None,
    }  # fmt: skip
    made = cast.max.post("reservations/", booking)
    assert made.status == 201, made.body
    clock.advance(hours=1)
    drive()
    clock.advance(hours=2)
    said = {"tenant": "acme", "core_request": 40, "memory_mib": GIB, "name": "in it", "reservation": made.body["uid"]}
    assert cast.max.post("claims/", said).status == 201
    run_round(cast.pool)
    machine.obey()
    clock.advance(hours=1)
    count()
    rows = efficiency(cast.anna, "by=claim")["rows"]
    assert [(row["name"], row["kind"], row["gpu_hours_reserved"]) for row in rows] == [
        ("exam", "reservation", 2.6), ("in it", "claim", 0.4),
    ]  # fmt: skip
    assert by(efficiency(cast.anna)["rows"]) == {"user:max": hours(3.0, 0.0, 0.0)}


@pytest.mark.parametrize("seed", seeds(3))
def test_the_sql_agrees_with_the_report_after_any_history(clock: Clock, cast: Cast, seed: int) -> None:
    history = History(cast, clock, seed)
    for step in range(STEPS):
        history.act()
        if step == STEPS // 2:
            allocations.roll_up()
    allocations.roll_up()
    rows = {row["claim"]: float(row["gpu_hours_reserved"]) for row in report(cast.olga, "&by=claim")["rows"]}
    counted = {row["uid"]: row["gpu_hours_reserved"] for row in efficiency(cast.olga, "by=claim&range=30days")["rows"]}
    assert counted == pytest.approx(rows, abs=0.001)
    assert sum(rows.values()) > 1


def test_the_first_run_counts_the_past(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=100)
    clock.advance(days=40)
    tasks.roll_up_allocations()
    assert AllocatedDay.objects.count() == 32
    assert efficiency(cast.olga, "range=30days")["total"]["gpu_hours_reserved"] == 29 * 24 + 12


def test_it_is_a_file_too_and_a_name_is_no_formula(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, name="=1+1", core_request=100)
    clock.advance(hours=1)
    count()
    answer = cast.vera.get("reports/efficiency/?by=claim", Accept="text/csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(answer.raw.decode()))
    assert (row["name"], row["range"], row["gpu_hours_unused"]) == ("'=1+1", "week", "1.0")


@pytest.mark.parametrize("query", ["by=colour", "range=year", "limit=0", "limit=9999", "limit=x", "from=2026-01-01"])
def test_a_senseless_question_is_refused(cast: Cast, query: str) -> None:
    assert cast.vera.get(f"reports/efficiency/?{query}").code == "invalid-fields"
    assert cast.vera.get("reports/efficiency/?pool=nowhere").code == "not-found"


# 200 nodes with 8 GPUs each, 5 claims on each GPU, of 400 people in 20 tenants.
FILL = """
INSERT INTO scheduling_allocatedday (at, uid, tenant_id, pool_id, owner, reserved_ms, used_ms)
SELECT %(today)s - day * interval '1 day', md5((claim + 8000 * (day / 10))::text)::uuid, %(tenants)s[1 + claim %% 20],
    %(pool)s, 'user:p' || claim %% 400 || CASE WHEN claim %% 3 = 0 THEN ' via token ci' ELSE '' END,
    17280000, 4000000 + claim
FROM generate_series(0, %(days)s - 1) AS day, generate_series(1, 8000) AS claim
"""
# Thirty days take 0.1 to 0.2 s, and twice that in the crowd of all tests. A plan that reads each row for each claim:
# minutes.
MOST_SECONDS = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("days", [6, pytest.param(30, marks=pytest.mark.long)])
def test_a_month_of_two_hundred_nodes_is_summed_at_once(cast: Cast, days: int) -> None:
    rows = Tenant.objects.bulk_create(Tenant(slug=f"t{number}", name=str(number)) for number in range(20))
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"today": today, "days": days, "tenants": [row.pk for row in rows], "pool": cast.pool.pk})
        cursor.execute("ANALYZE scheduling_allocatedday")
    for group in ("person", "claim", "tenant", "pool"):
        seconds = list[float]()
        for _ in range(3):
            begun = perf_counter()
            report = allocated(principal=SYSTEM, by=group, within="30days", limit=100)
            seconds.append(perf_counter() - begun)
            assert report["total"]["gpu_hours_reserved"] == pytest.approx(8000 * days * 4.8)
        assert min(seconds) < MOST_SECONDS, (group, seconds)
