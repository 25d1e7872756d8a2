"""The GPU-hours page: claims, days, and the export."""

import json
from typing import Any

import pytest

from tests.cast import Cast, Machine, placed
from tests.pages.conftest import SignIn
from tests.scheduling.clock import Clock, clock

# The fixture is found by its name here; the clock is set before machines and sessions are made.
__all__ = ["clock"]


def rows_of(answer: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(b"".join(answer).decode())
    return found


def test_hours_are_ones_own_tenants_and_a_file_too(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=50)
    page = browser("anna").get("/reports/").content.decode()
    assert '<a href="/tenants/acme/">acme</a>' in page
    assert "<td" in page
    assert "acme" not in browser("gus").get("/reports/").content.decode()
    rows = rows_of(browser("olga").get("/reports/?format=json&tenant=acme"))
    assert [row["tenant"] for row in rows] == ["acme"]
    assert rows_of(browser("olga").get("/reports/?format=json&tenant=globex")) == []


def test_a_tenant_and_an_organisation_are_not_both_chosen(cast: Cast, browser: SignIn) -> None:
    cast.olga.post("organisations/", {"slug": "university", "name": "University"})
    page = browser("olga").get("/reports/?tenant=acme&organisation=university").content.decode()
    assert "Choose a tenant or an organisation, not both." in page


def test_the_page_has_a_chart_a_forecast_and_owners(
    clock: Clock, cast: Cast, machine: Machine, browser: SignIn
) -> None:
    placed(cast, machine, core_request=50, principal=cast.member)
    clock.advance(hours=36)
    browser_ = browser("anna")
    page = " ".join(browser_.get("/reports/").content.decode().split())
    # Half a GPU since noon of the 15th; the mean is of the 9th to the 15th: 6 h / 7, for 14 days.
    assert (
        "Forecast until 2026-07-01: 30.00 GPU-hours allocated, 0.00 EUR, at the mean of the last 7 complete days."
        in page
    )
    assert '<td class="num">18.00</td>' in page
    chart = json.loads(page.split('<script id="series" type="application/json">')[1].split("</script>")[0])
    (series,) = chart["series"]
    assert series["reserved"] == [0.0] * 15 + [6.0, 18.0, None]
    assert series["forecast"] == [None] * 16 + [18.0, 30.0]
    assert {len(series[name]) for name in ("times", "reserved", "used", "forecast")} == {18}
    assert series["times"][-1] == chart["now"]
    assert "max</td>" not in page
    page = " ".join(browser_.get("/reports/?by=person").content.decode().split())
    assert "<td>max</td>" in page
    assert "Used, h" not in page
    (row,) = rows_of(browser_.get("/reports/?by=person&format=json"))
    assert row["owner"] == "user:max"
    assert "Forecast" not in browser_.get("/reports/?begin=2026-06-15&end=2026-06-15").content.decode()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("begin=2026-02-01&end=2026-01-01", "To:"),
        ("begin=2020-01-01&end=2026-01-01", "To:"),
        ("begin=soon&end=2026-01-01", "From:"),
        ("begin=9999-12-01&end=9999-12-31", "To:"),
        ("tenant=nobody", "Tenant:"),
        ("by=colour", "Group by:"),
    ],
)
def test_a_period_that_is_none_is_said_so(cast: Cast, browser: SignIn, query: str, words: str) -> None:
    answer = browser("olga").get(f"/reports/?{query}")
    assert answer.status_code == 200
    assert words in answer.content.decode()
    # An empty file would look like an answer.
    assert "<html" in browser("olga").get(f"/reports/?{query}&format=csv").content.decode()
