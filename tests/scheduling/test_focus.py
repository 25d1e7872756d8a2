"""Charges in the columns of FOCUS: exact sums, days and prices, and pages."""

import csv
import io
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from apps.accounting.services.focus import COLUMNS
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import MODEL, Api, Cast, Machine, give_plenty, placed
from tests.scheduling.clock import Clock
from tests.scheduling.test_usage_reports import price, report

PERIOD = "from=2026-06-01T00:00:00Z&to=2026-07-01T00:00:00Z"
# FOCUS 1.2: columns whose feature level is "Mandatory".
MANDATORY = {
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity",
    "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName",
}  # fmt: skip
# Only a correction of an earlier period has one; a claim may be without a name.
MAY_BE_NULL = {"ChargeClass", "ResourceName"}


@pytest.fixture
def machine(clock: Clock, cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def rows_of(who: Api, query: str = "") -> list[dict[str, Any]]:
    answer = who.get(f"reports/focus/?{PERIOD}{query}")
    assert answer.status == 200, answer.body
    rows: list[dict[str, Any]] = answer.body["rows"]
    return rows


def add(rows: list[dict[str, Any]], column: str, places: str) -> str:
    return str(sum((Decimal(row[column]) for row in rows), Decimal()).quantize(Decimal(places)))


def use_for_days(cast: Cast, machine: Machine, clock: Clock) -> None:
    """Hold two claims over two midnights and a change of price, with times that no decimal ends for."""
    price("2.50")
    price("3.10", date(2026, 6, 16))
    claim, _ = placed(cast, machine, core_request=7)
    placed(cast, machine, core_request=13, name="=other")
    clock.advance(minutes=7, seconds=13, microseconds=7)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=29))
    clock.advance(hours=31, minutes=1, microseconds=11)


def test_rows_add_up_to_what_the_usage_report_says(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    rows, total = rows_of(cast.vera), report(cast.vera)["total"]
    assert add(rows, "PricingQuantity", "0.000001") == total["gpu_hours_reserved"]
    assert {add(rows, name, "0.0001") for name in ("BilledCost", "EffectiveCost", "ListCost")} == {
        total["cost_reserved"]
    }
    # Two claims on two days: the price changes at the midnight between them.
    assert sorted((row["ResourceName"], row["ChargePeriodStart"][:10], row["ListUnitPrice"]) for row in rows) == [
        (name, day, unit)
        for name in ("=other", "train")
        for day, unit in (("2026-06-15", "2.5"), ("2026-06-16", "3.1"))
    ]
    for row in rows:
        product = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(product - Decimal(row["ListCost"])) < Decimal("0.00000000001")
        assert set(row) >= MANDATORY
        assert not {name for name, value in row.items() if value is None} - MAY_BE_NULL
        # A SKU price keeps its id when its amount changes.
        assert row["SkuPriceId"] == f"{row['SkuId']}/{row['RegionId']}"
        assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-06-01T00:00:00Z", "2026-07-01T00:00:00Z")


def test_pages_have_the_rows_of_the_whole(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    whole, paged, query = rows_of(cast.vera), [], "&limit=1"
    while query:
        answer = cast.vera.get(f"reports/focus/?{PERIOD}{query}")
        paged += answer.body["rows"]
        after = (answer.body["next"] or "").partition("after=")[2].partition("&")[0]
        query = f"&limit=1&after={after}" if after else ""
    # Claims come by age from page to page, and by uid within one.
    assert sorted(row["ResourceId"] for row in paged) == sorted(row["ResourceId"] for row in whole)
    assert add(paged, "BilledCost", "0.0001") == add(whole, "BilledCost", "0.0001")


def test_hours_without_a_price_cost_nothing(cast: Cast, machine: Machine, clock: Clock) -> None:
    placed(cast, machine, core_request=50)
    clock.advance(hours=2)
    (row,) = rows_of(cast.vera)
    assert (row["PricingQuantity"], row["PricingCategory"]) == ("1.000000000000", "Standard")
    assert Decimal(row["BilledCost"]) == Decimal(row["ListUnitPrice"]) == 0
    assert not {name for name, value in row.items() if value is None} - MAY_BE_NULL


def test_readers_see_their_own_tenants_and_bad_questions_are_refused(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    use_for_days(cast, machine, clock)
    assert rows_of(cast.gus) == []
    assert cast.gus.get("reports/focus/?tenant=acme").code == "not-found"
    assert cast.nobody.get("reports/focus/").status == 401
    assert cast.vera.get("reports/focus/?from=2026-06-02T00:00:00Z&to=2026-06-01T00:00:00Z").code == "period-invalid"
    assert cast.vera.get("reports/focus/?limit=0").code == "invalid-fields"


def test_csv_has_the_columns_and_no_formula(cast: Cast, machine: Machine, clock: Clock) -> None:
    use_for_days(cast, machine, clock)
    answer = cast.vera.get(f"reports/focus/?{PERIOD}", Accept="text/csv")
    lines = list(csv.DictReader(io.StringIO(answer.raw.decode())))
    assert tuple(lines[0]) == COLUMNS
    assert {line["ResourceName"] for line in lines} == {"train", "'=other"}
    assert lines[0]["SkuId"] == MODEL
