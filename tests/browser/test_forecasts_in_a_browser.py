"""The forecast of a claim and the compared policies of a pool, in both themes and on a phone."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser

from apps.forecasts import history, services
from apps.forecasts.quantiles import DAY
from apps.nodes.models import TelemetryMark
from apps.nodes.services.telemetry.levels import floor
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from tests.browser.accessibility import AXE
from tests.browser.conftest import SESSION, Visitor
from tests.cast import Machine, give_plenty, make_cast, placed
from tests.platform import PATIENCE_SECONDS, until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.filterwarnings("ignore:get_.* is deprecated:DeprecationWarning"),
]

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def make_forecast() -> Claim:
    """Create a claim with nine days of use in the day's second half, and the last hours' forecasts."""
    cast = make_cast()
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="apply", rebalance_policy="forecast")
    cast.pool.refresh_from_db()
    claim, _ = placed(cast, Machine("gpu1", cast.pool, gpus=1), core_request=80)
    end, at = floor(timezone.now(), history.WINDOW), np.arange(9 * DAY)
    rng = np.random.default_rng(1)
    used = np.where(at % DAY >= DAY // 2, rng.normal(50, 8, len(at)), rng.random(len(at)) * 4).clip(0, 100)
    write("used", claim, end, used)
    for name in ("rolled", history.MARK):
        TelemetryMark.objects.update_or_create(name=name, defaults={"at": end})
    services.follow_use()
    later = end - history.WINDOW
    write("expected", claim, later, used[-100:-1] * 0.9)
    write("upper", claim, later, (used[-100:-1] + 15).clip(0, 100))
    return claim


def write(name: str, claim: Claim, end: datetime, series: Any) -> None:
    found: dict[Any, dict[int, float]] = {}
    for back, value in enumerate(reversed(series.tolist()), start=1):
        at = end - back * timedelta(minutes=5)
        found.setdefault((claim.pk, at.date()), {})[history.window_of_day(at)] = value
    history.write(name, found)


def check(visitor: Visitor, path: str, title: str) -> None:
    """Fail on errors of the page, on findings of axe in either theme, and if a phone would scroll sideways."""
    page = visitor.page
    page.set_viewport_size(DESK)  # type: ignore[arg-type]
    page.goto(path)
    page.get_by_role("heading", name=title, exact=True).wait_for()
    # This server has no websockets; the page asks again by itself.
    assert not [complaint for complaint in visitor.complaints if "WebSocket" not in complaint]
    page.evaluate(AXE)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        # Sheets import each other here, and axe would copy their text into the page: that is forbidden.
        found = page.evaluate("axe.run(document, {preload: false, resultTypes: ['violations']})")
        assert not found["violations"], (path, theme)
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    until(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), what=f"{path} to fit a phone")
    # Axe tries an empty style sheet, and the policy refuses it: not the page's error.
    visitor.complaints.clear()


def test_a_forecast_and_compared_policies_are_accessible_in_both_themes_and_fit_a_phone(
    chrome: Browser, live_server: Any
) -> None:
    claim = make_forecast()
    client = Client()
    client.force_login(User.objects.get(username="olga"))
    context = chrome.new_context(base_url=live_server.url, reduced_motion="reduce", color_scheme="light")
    try:
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        context.add_cookies([{"name": SESSION, "value": client.cookies[SESSION].value, "url": live_server.url}])
        visitor = Visitor(context.new_page())
        check(visitor, "/pools/default/policies/?days=1", "Policies of pool default compared")
        assert visitor.page.locator("tbody tr").count() == 4
        check(visitor, f"/claims/{claim.uid}/", "Forecast of its use")
        assert visitor.page.locator("polygon").bounding_box()
    finally:
        # Its pages would ask on, while the database is emptied.
        context.close()
