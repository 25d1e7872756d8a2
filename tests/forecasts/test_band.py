"""The forecast of a claim as its owner reads it: in the API, and on its page and that of its pool."""

import re

import numpy as np
import pytest

from apps.console.claims.forecast_facts import find_forecast
from apps.forecasts.quantiles import DAY
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims.sharing import change_pool
from tests.cast import Cast, Machine, ask, placed
from tests.forecasts.test_following import follow, remember, roll
from tests.pages.conftest import SignIn, browser
from tests.scheduling.clock import Clock
from tests.scheduling.idling import machine

__all__ = ["browser", "machine"]


@pytest.fixture(autouse=True)
def by_forecast(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_policy="forecast")


def test_a_claim_shows_its_band_and_how_often_it_was_wrong(
    cast: Cast, machine: Machine, clock: Clock, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    path = f"claims/{claim.uid}/forecast/"
    nothing = cast.max.get(path).body
    assert (nothing["source"], nothing["windows"], nothing["wrong_percent"]) == ("none", [], None)
    page = browser("max").get(f"/claims/{claim.uid}/").content.decode()
    assert "forecast-title" not in page
    remember(claim, clock, np.full(4 * DAY, 20.0))
    follow(clock)
    roll(claim, clock, 60.0)
    follow(clock)
    shown = cast.max.get(path).body
    assert (shown["source"], shown["risk_percent"], shown["judged"], shown["wrong_percent"]) == ("claim", 5, 1, 100.0)
    (judged,) = [one for one in shown["windows"] if one["used_percent"] == 60]
    assert judged["expected_percent"] <= judged["upper_percent"] < 60
    assert "forecast-title" in browser("max").get(f"/claims/{claim.uid}/").content.decode()


def test_nobody_else_sees_the_forecast_of_a_claim(cast: Cast, machine: Machine, clock: Clock, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(4 * DAY, 20.0))
    follow(clock)
    path = f"claims/{claim.uid}/forecast/"
    assert [who.get(path).status for who in (cast.max, cast.olga, cast.gus)] == [200, 200, 404]
    assert browser("gus").get(f"/claims/{claim.uid}/").status_code == 404
    assert cast.olga.get("claims/00000000-0000-0000-0000-000000000000/forecast/").status == 404


def test_a_claim_without_a_gpu_has_no_forecast(cast: Cast, machine: Machine, clock: Clock, browser: SignIn) -> None:
    claim = ask(cast, core_request=80)
    follow(clock)
    shown = cast.max.get(f"claims/{claim.uid}/forecast/").body
    assert shown == {
        "claim": str(claim.uid), "source": "none", "at": None, "days": 0.0, "risk_percent": None,
        "expected_percent": None, "upper_percent": None, "judged": 0, "wrong_percent": None, "windows": [],
    }  # fmt: skip
    assert "forecast-title" not in browser("max").get(f"/claims/{claim.uid}/").content.decode()


def test_a_young_claim_has_windows_but_no_forecast(cast: Cast, machine: Machine, clock: Clock, browser: SignIn) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(DAY, 20.0))
    follow(clock)
    shown = cast.max.get(f"claims/{claim.uid}/forecast/").body
    assert (shown["source"], shown["days"], shown["upper_percent"]) == ("none", 1.0, None)
    assert {(one["used_percent"], one["upper_percent"]) for one in shown["windows"]} == {(20.0, None)}
    assert "forecast-title" not in browser("max").get(f"/claims/{claim.uid}/").content.decode()


def test_an_old_forecast_says_nothing_of_the_next_minutes(
    cast: Cast, machine: Machine, clock: Clock, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(4 * DAY, 20.0))
    follow(clock)
    path = f"claims/{claim.uid}/forecast/"
    assert cast.max.get(path).body["source"] == "claim"
    clock.advance(minutes=20)
    shown = cast.max.get(path).body
    assert (shown["source"], shown["at"], shown["upper_percent"], shown["expected_percent"]) == ("none",) + (None,) * 3
    assert shown["windows"], "the past stays"
    assert "forecast-title" not in browser("max").get(f"/claims/{claim.uid}/").content.decode()


def test_the_band_lies_around_the_line_in_a_box_of_a_day(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.full(4 * DAY, 20.0))
    for core in (20.0, 90.0):
        follow(clock)
        roll(claim, clock, core)
    follow(clock)
    found = find_forecast(claim)
    assert found is not None
    used, band = points(found["used"]), points(found["band"])
    # Two forecasts were judged, and the third is of the window that has begun: it has no use yet.
    assert used[-2:] == [(DAY - 3, 80.0), (DAY - 2, 10.0)]
    assert [at for at, _ in band] == [DAY - 3, DAY - 2, DAY - 1, DAY - 1, DAY - 2, DAY - 3]
    assert all(0 <= at < DAY and 0 <= down <= 100 for at, down in [*used, *band])
    assert all(upper <= lower for (_, upper), (_, lower) in zip(band[:3], band[:2:-1], strict=True))


def test_the_policies_of_a_pool_are_compared_on_its_page(
    cast: Cast, machine: Machine, clock: Clock, browser: SignIn
) -> None:
    claim, _ = placed(cast, machine, core_request=80)
    remember(claim, clock, np.where(np.arange(6 * DAY) % DAY < DAY // 2, 40.0, 1.0))
    page = browser("olga").get("/pools/default/policies/?days=1").content.decode()
    replayed = cast.olga.post("pools/default/rebalance/?dry_run=true&policy=forecast&days=1").body["replay"]
    rows = [re.findall(r">([^<>]*\S[^<>]*)<", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)[1:]]
    assert len(rows) == len(replayed["policies"]) == 4
    for cells, row in zip(rows, replayed["policies"], strict=True):
        shown = [cell.strip() for cell in cells]
        assert shown[0].lower().startswith(row["policy"])
        assert shown[1:3] == [str(row["lent_core_hours"]), f"{row['throttled_percent']} %"]
        if row["throttled"]:
            assert shown[5] == f"{claim.name} ({row['throttled'][0]['windows']})"
    assert any(row["throttled"] for row in replayed["policies"])
    assert "1 claim is replayed." in page


def test_the_page_of_policies_asks_for_a_period_and_is_for_operators(
    cast: Cast, machine: Machine, browser: SignIn
) -> None:
    olga = browser("olga")
    for query in ("", "?days=0", "?days=31", "?days=x"):
        assert "Choose a period" in olga.get(f"/pools/default/policies/{query}").content.decode()
    assert "No use is recorded in this period." in olga.get("/pools/default/policies/?days=30").content.decode()
    assert '/pools/default/policies/"' in olga.get("/pools/default/").content.decode()
    assert olga.get("/pools/absent/policies/").status_code == 404
    assert browser("max").get("/pools/default/policies/").status_code == 403


def points(text: str) -> list[tuple[int, float]]:
    pairs = [pair.split(",") for pair in text.split()]
    return [(int(at), float(down)) for at, down in pairs]
