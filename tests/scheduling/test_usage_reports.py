"""Reports: GPU-hours from the ledger, measured hours from samples, costs from the price book."""

import csv
import io
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from apps.accounting import tasks
from apps.nodes.models import Sample, UsageFrame
from apps.quotas.models import LedgerEntry, Price
from apps.quotas.principals import SYSTEM
from apps.quotas.services import organisations, tenants
from apps.quotas.services.prices import set_price
from apps.scheduling.models import Claim, UsedHour
from apps.scheduling.services.charging import metering
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, MODEL, Api, Cast, Machine, ask, give, give_plenty, placed
from tests.measurements import keep
from tests.scheduling.clock import START, Clock

DAY = START.date()


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def price(per_gpu_hour: str, valid_from: date = DAY, **facts: Any) -> Price:
    facts = {"gpu_model": MODEL, "pool": None, **facts}
    return set_price(principal=SYSTEM, valid_from=valid_from, per_gpu_hour=Decimal(per_gpu_hour), **facts)


def report(who: Api, query: str = "") -> dict[str, Any]:
    answer = who.get(f"reports/usage/?from=2026-06-01T00:00:00Z{query}")
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.body
    return body


def reserved(who: Api, query: str = "") -> Decimal:
    return Decimal(report(who, query)["total"]["gpu_hours_reserved"])


def end(claim: Claim, machine: Machine) -> None:
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()


def test_a_resize_counts_from_its_moment(cast: Cast, machine: Machine, clock: Clock) -> None:
    price("2.50")
    claim, _ = placed(cast, machine, core_request=30, gpu_count=2)
    clock.advance(hours=10)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=50))
    clock.advance(hours=1)
    end(claim, machine)
    clock.advance(hours=5)
    (row,) = report(cast.vera)["rows"]
    # 2 × 30 % for ten hours, then 2 × 50 % for one.
    assert row == {
        "organisation": None, "tenant": "acme", "pool": "default", "gpu_model": MODEL, "owner": None, "claim": None,
        "name": None,
        "gpu_hours_reserved": "7.000000", "gpu_hours_used": "0.000000",
        "cost_reserved": "17.5000", "cost_used": "0.0000", "gpu_hours_unpriced": "0.000000",
    }  # fmt: skip


def test_what_shrinks_counts_until_the_agent_has_confirmed(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    clock.advance(hours=1)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=20))
    clock.advance(hours=1)
    machine.obey()
    clock.advance(hours=1)
    assert reserved(cast.vera) == Decimal("1.8")


def test_time_in_the_queue_costs_nothing(cast: Cast, machine: Machine, clock: Clock) -> None:
    ask(cast, core_request=100)
    clock.advance(hours=3)
    assert report(cast.vera)["rows"] == []
    run_round(cast.pool)
    clock.advance(minutes=30)
    assert reserved(cast.vera) == Decimal("0.5")


def test_a_claim_under_two_quotas_and_one_made_later_counts_once(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=40)
    clock.advance(hours=1)
    give(cast.acme, pool=cast.pool, core_percent=100)
    clock.advance(hours=1)
    end(claim, machine)
    assert LedgerEntry.objects.filter(claim_uid=claim.uid, resource="core_percent", amount__gt=0).count() == 2
    assert reserved(cast.vera) == Decimal("0.8")


def test_a_period_takes_its_part_of_claims_that_reach_beyond_it(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=100)
    clock.advance(hours=48)
    end(claim, machine)
    whole = reserved(cast.vera)
    parts = [reserved(cast.vera, f"&to={end_}") for end_ in ("2026-06-15T20:00:00Z", "2026-06-16T20:00:00%2B02:00")]
    assert [*parts, whole] == [Decimal(8), Decimal(30), Decimal(48)]


def test_prices_change_at_midnight_and_a_pools_own_goes_first(cast: Cast, machine: Machine, clock: Clock) -> None:
    price("1.00")
    price("2.00", DAY + timedelta(days=1))
    placed(cast, machine, core_request=100)
    clock.advance(hours=24)  # twelve hours before midnight, twelve after
    assert report(cast.vera)["total"]["cost_reserved"] == "36.0000"
    price("10.00", DAY + timedelta(days=1), pool=cast.pool)
    assert report(cast.vera)["total"]["cost_reserved"] == "132.0000"


def test_hours_without_a_price_are_told(cast: Cast, machine: Machine, clock: Clock) -> None:
    price("3.00", DAY + timedelta(days=1))
    price("9.00", DAY, gpu_model="another")
    placed(cast, machine, core_request=50)
    clock.advance(hours=14)
    total = report(cast.vera)["total"]
    assert (total["gpu_hours_unpriced"], total["cost_reserved"]) == ("6.000000", "3.0000")


def test_each_number_can_be_traced_to_claims_and_from_there_to_the_ledger(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claims = [placed(cast, machine, core_request=core, name=f"c{core}")[0] for core in (10, 20)]
    clock.advance(hours=2)
    body = report(cast.vera, "&by=claim")
    assert {(row["claim"], row["name"], row["gpu_hours_reserved"]) for row in body["rows"]} == {
        (str(claims[0].uid), "c10", "0.200000"),
        (str(claims[1].uid), "c20", "0.400000"),
    }
    assert body["total"] == report(cast.vera)["total"]


def test_rows_by_person_and_by_claim_name_their_owner(cast: Cast, machine: Machine, clock: Clock) -> None:
    for number in range(2):
        placed(cast, machine, principal=cast.member, core_request=10, name=f"c{number}")
    placed(cast, machine, core_request=20)
    clock.advance(hours=1)
    people = report(cast.vera, "&by=person")
    assert [(row["owner"], row["gpu_hours_reserved"]) for row in people["rows"]] == [
        ("system", "0.200000"), ("user:max", "0.200000"),
    ]  # fmt: skip
    assert people["total"] == report(cast.vera)["total"]
    owners = [row["owner"] for row in report(cast.vera, "&by=claim")["rows"]]
    assert owners == ["system", "user:max via token member's", "user:max via token member's"]
    answer = cast.vera.get("reports/usage/?by=claim", Accept="text/csv")
    (line, *_) = csv.DictReader(io.StringIO(answer.raw.decode()))
    assert line["owner"] == "system"


def test_the_trend_is_the_total_day_by_day(cast: Cast, machine: Machine, clock: Clock) -> None:
    price("2.00")
    claim, assignment = placed(cast, machine, core_request=20)
    measure(assignment.uid, clock.now, seconds=900, core_percent=40)
    clock.advance(hours=11)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=60))
    clock.advance(hours=1)
    tasks.roll_up_usage()
    clock.advance(hours=48 + 6)
    machine.obey()
    body = report(cast.vera)
    days = [(row["at"], row["gpu_hours_reserved"], row["gpu_hours_used"]) for row in body["trend"]]
    assert len(days) == 18
    assert days[:14] == [(f"2026-06-{day:02}T00:00:00Z", "0.000000", "0.000000") for day in range(1, 15)]
    # 0.2 × 11 h and 0.6 × 1 h on the first day, then whole days, then six hours.
    assert days[14:] == [
        ("2026-06-15T00:00:00Z", "2.800000", "0.100000"), ("2026-06-16T00:00:00Z", "14.400000", "0.000000"),
        ("2026-06-17T00:00:00Z", "14.400000", "0.000000"), ("2026-06-18T00:00:00Z", "3.600000", "0.000000"),
    ]  # fmt: skip
    # The mean of 11 to 17 June, for the 12.75 days to the end of the month.
    assert body["forecast"] == {
        "to": "2026-07-01T00:00:00Z", "gpu_hours_reserved": "92.757143", "cost_reserved": "185.5143",
    }  # fmt: skip
    assert report(cast.vera, "&by=claim")["trend"] == []
    for over in ("&to=2026-06-17T00:00:00Z", "&by=claim"):
        assert report(cast.vera, over)["forecast"] is None


def test_a_period_without_a_complete_day_has_no_forecast(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=20)
    clock.advance(hours=20)
    body = cast.vera.get("reports/usage/?from=2026-06-15T06:00:00Z").body
    assert [row["gpu_hours_reserved"] for row in body["trend"]] == ["2.400000", "1.600000"]
    assert body["forecast"] is None


def test_a_report_by_claim_comes_in_pages_that_lose_and_double_nothing(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "AT_ONCE", 2)
    for number in range(5):
        placed(cast, machine, core_request=10, memory_mib=GIB, name=f"c{number}")
    clock.advance(hours=1)
    url, names, sums = "/api/v1/reports/usage/?from=2026-06-01T00:00:00Z&by=claim&limit=2", list[str](), Decimal(0)
    pages = 0
    while url:
        answer = cast.vera.get(url)
        assert answer.status == 200, answer.body
        names += [row["name"] for row in answer.body["rows"]]
        sums += Decimal(answer.body["total"]["gpu_hours_reserved"])
        url = (answer.body["next"] or "").removeprefix("http://testserver")
        assert bool(url) == ("Link" in answer.headers)
        pages += 1
    assert (pages, sorted(names)) == (3, [f"c{number}" for number in range(5)])
    assert sums == reserved(cast.vera) == Decimal("0.5")
    for wrong in (
        "by=model&limit=2",
        "by=claim&limit=0",
        "by=claim&limit=5001",
        "by=claim&limit=x",
        "by=claim&after=x",
    ):
        assert cast.vera.get(f"reports/usage/?{wrong}").code == "invalid-fields"


def test_everyone_sees_their_own_tenants_and_an_operator_all(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=10)
    placed(cast, machine, core_request=20, tenant=cast.globex)
    clock.advance(hours=1)
    tenants = {name: [row["tenant"] for row in report(getattr(cast, name))["rows"]] for name in ("olga", "vera", "gus")}
    assert tenants == {"olga": ["acme", "globex"], "vera": ["acme"], "gus": ["globex"]}
    assert cast.gus.get("reports/usage/?tenant=acme").code == "not-found"
    assert reserved(cast.olga, "&tenant=globex") == Decimal("0.2")


def test_a_report_as_csv_has_a_line_for_each_row(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=10, name="\n=cmd()")
    clock.advance(hours=1)
    answer = cast.vera.get("reports/usage/?by=claim", Accept="text/csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    (line,) = csv.DictReader(io.StringIO(answer.raw.decode()))
    assert (line["tenant"], line["name"], line["gpu_hours_reserved"], line["currency"]) == (
        "acme", "'\n=cmd()", "0.100000", "EUR",
    )  # fmt: skip
    assert line["from"] == "2026-06-01T00:00:00Z"


def test_a_refusal_is_the_same_to_those_who_ask_for_csv(cast: Cast, machine: Machine) -> None:
    answer = cast.vera.get("reports/usage/?tenant=nowhere", Accept="text/csv")
    assert answer.code == "not-found"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("from=2026-06-02T00:00:00Z&to=2026-06-01T00:00:00Z", "period-invalid"),
        ("from=2020-01-01T00:00:00Z", "period-invalid"),
        ("from=yesterday", "invalid-fields"),
        ("by=colour", "invalid-fields"),
        ("tennant=acme", "invalid-fields"),
    ],
)
def test_a_senseless_question_is_refused(cast: Cast, machine: Machine, query: str, code: str) -> None:
    assert cast.vera.get(f"reports/usage/?{query}").code == code


@pytest.mark.parametrize("name", ["from", "to"])
def test_a_refusal_names_a_time_as_it_was_asked_for(cast: Cast, machine: Machine, name: str) -> None:
    assert list(cast.vera.get(f"reports/usage/?{name}=yesterday").body["errors"]) == [name]
    assert (
        "known are: from, to, tenant, organisation, by"
        in cast.vera.get("reports/usage/?start=2026").body["errors"]["start"][0]
    )


def measure(assignment: UUID, begin: datetime, *, seconds: int, core_percent: float, every: float = 1.0) -> None:
    count = int(seconds / every)
    keep(
        Sample(
            assignment_uid=assignment, at=begin + timedelta(seconds=number * every), core_percent=core_percent,
            memory_bytes=0,
        )
        for number in range(count + 1)
    )  # fmt: skip


def test_measured_time_is_kept_by_the_hour_and_counted_once_however_often(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    price("4.00")
    _, assignment = placed(cast, machine, core_request=50)
    measure(assignment.uid, clock.now, seconds=900, core_percent=40)
    clock.advance(hours=1)
    for _ in range(3):
        tasks.roll_up_usage()
    assert list(UsedHour.objects.values_list("hour", "gpu_time_ms")) == [(START, 360_000)]
    (row,) = report(cast.vera)["rows"]
    assert (row["gpu_hours_used"], row["cost_used"]) == ("0.100000", "0.4000")


def test_a_sample_counts_for_the_time_since_the_one_before_it(cast: Cast, machine: Machine, clock: Clock) -> None:
    _, assignment = placed(cast, machine)
    # Twice as many samples in the same time, then a silence of ten minutes, which counts nothing.
    measure(assignment.uid, clock.now, seconds=100, core_percent=50, every=0.5)
    measure(assignment.uid, clock.now + timedelta(seconds=700), seconds=100, core_percent=50)
    clock.advance(hours=1)
    tasks.roll_up_usage()
    assert UsedHour.objects.get().gpu_time_ms == (100 + 100) * 500


@pytest.mark.slow
def test_late_frames_are_made_up_for_and_dropped_samples_take_nothing_away(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    _, assignment = placed(cast, machine)
    measure(assignment.uid, clock.now, seconds=100, core_percent=100)
    clock.advance(minutes=90)
    tasks.roll_up_usage()
    measure(assignment.uid, START + timedelta(minutes=20), seconds=100, core_percent=100)
    tasks.roll_up_usage()
    late = UsedHour.objects.get().gpu_time_ms
    assert late == (100 + 100) * 1000
    clock.advance(hours=23)
    measure(assignment.uid, clock.now, seconds=10, core_percent=100)
    UsageFrame.objects.filter(at__lt=START + timedelta(minutes=10)).delete()
    tasks.roll_up_usage()
    assert UsedHour.objects.order_by("hour").values_list("gpu_time_ms", flat=True)[0] == late


def test_nobody_uses_more_than_the_whole_gpu_whatever_a_page_says(cast: Cast, machine: Machine, clock: Clock) -> None:
    _, assignment = placed(cast, machine)
    measure(assignment.uid, clock.now, seconds=10, core_percent=1000)
    clock.advance(minutes=2)
    tasks.roll_up_usage()
    assert UsedHour.objects.get().gpu_time_ms == 10_000


def university(cast: Cast) -> None:
    """Place acme in physics and globex in the university above; initech belongs to no organisation."""
    top = organisations.create_organisation(principal=SYSTEM, slug="university", name="University")
    part = organisations.create_organisation(principal=SYSTEM, slug="physics", name="Physics", parent=top)
    for tenant, row in ((cast.acme, part), (cast.globex, top)):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, organisation=row)


def test_an_organisation_has_the_hours_and_the_cost_of_all_that_is_below_it(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    price("2.00")
    university(cast)
    initech = tenants.create_tenant(principal=SYSTEM, slug="initech", name="Initech")
    give_plenty(initech)
    for tenant, core in ((cast.acme, 50), (cast.globex, 20), (initech, 10)):
        placed(cast, machine, tenant=tenant, core_request=core)
    clock.advance(hours=10)
    found = report(cast.olga, "&by=organisation")
    hours = [
        (row["organisation"], row["tenant"], row["gpu_hours_reserved"], row["cost_reserved"]) for row in found["rows"]
    ]
    assert hours == [
        (None, None, "1.000000", "2.0000"),
        ("physics", None, "5.000000", "10.0000"),
        ("university", None, "7.000000", "14.0000"),
    ]
    # The rows overlap; the total has each tenant once.
    assert (found["total"]["gpu_hours_reserved"], found["total"]["cost_reserved"]) == ("8.000000", "16.0000")
    assert found["total"] == report(cast.olga)["total"]
    assert reserved(cast.olga, "&organisation=university") == 7
    assert reserved(cast.olga, "&organisation=physics") == 5
    # A tenant's members see its part of the organisations above it, and nothing of others.
    mine = report(cast.vera, "&by=organisation")
    assert [(row["organisation"], row["gpu_hours_reserved"]) for row in mine["rows"]] == [
        ("physics", "5.000000"),
        ("university", "5.000000"),
    ]
    assert reserved(cast.vera, "&organisation=university") == 5
    assert cast.gus.get("reports/usage/?organisation=physics").status == 404


def test_measured_hours_count_at_each_level(cast: Cast, machine: Machine, clock: Clock) -> None:
    university(cast)
    UsedHour.objects.create(tenant=cast.acme, pool=cast.pool, gpu_model=MODEL, hour=START, gpu_time_ms=1_800_000)
    found = report(cast.olga, "&by=organisation&to=2026-07-01T00:00:00Z")
    used_hours = {row["organisation"]: row["gpu_hours_used"] for row in found["rows"]}
    assert used_hours == {"physics": "0.500000", "university": "0.500000"}
    assert found["total"]["gpu_hours_used"] == "0.500000"


def test_a_report_has_one_of_the_two_filters(cast: Cast) -> None:
    answer = cast.olga.get("reports/usage/?tenant=acme&organisation=physics")
    assert answer.code == "invalid-fields"
    assert answer.body["errors"] == {"organisation": ["Give a tenant or an organisation, not both."]}
    assert cast.olga.get("reports/usage/?organisation=nowhere").status == 404
