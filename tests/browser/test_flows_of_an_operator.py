"""An operator's tasks by the keyboard alone: answer a request, drain a node after a preview, create a token."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press, write
from tests.platform import Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


def test_a_request_is_found_on_the_overview_and_approved(visitor: Visitor, platform: Platform) -> None:
    platform.new_tenant("browser-asks", core=100)
    asked = {"tenant": "browser-asks", "resource": "core_percent", "amount": 50, "reason": "a course"}
    platform.granted("POST", "quota-requests/", asked)
    page = visitor.page
    page.goto("/")
    press(page, page.get_by_role("link", name="browser-asks requests 50 % more core"))
    expect(page.locator("#preview")).to_contain_text("Nothing is changed yet")
    write(page, "Comment", "For this term.")
    press(page, page.get_by_role("button", name="Approve"))
    expect(page.locator("h1 [data-state]")).to_have_text("Approved")
    (quota,) = platform.granted("GET", "quotas/?tenant=browser-asks&resource=core_percent")["results"]
    assert quota["hard"] == 150


def test_a_node_is_drained_after_a_look_and_uncordoned_again(visitor: Visitor, platform: Platform) -> None:
    platform.new_tenant("browser-moves")
    asked = {"tenant": "browser-moves", "name": "moving", "core_request": 10, "memory_mib": 512}
    claim: dict[str, Any] = platform.granted("POST", "claims/?wait=30", asked)
    node, page = claim["assignments"][0]["node"], visitor.page
    page.goto(f"/nodes/{node}/")
    expect(page.locator("[data-chart=power] [data-legend]").first).to_have_text(re.compile(r"power\d+ W"))
    press(page, page.get_by_role("link", name="Drain…"))
    expect(page.get_by_role("heading", name="Affected claims")).to_be_visible()
    expect(page.get_by_role("link", name="moving")).to_be_visible()
    write(page, "Grace period", "600")
    press(page, page.get_by_role("button", name="Preview"))
    expect(page.locator("#preview")).to_contain_text("requeued 10 min later")
    press(page, page.get_by_role("button", name="Drain node"))
    expect(page.locator("h1 [data-state]")).to_contain_text("Draining")
    until(lambda: told(platform, claim), seconds=20, what="the claim to be told")
    press(page, page.get_by_role("button", name="Uncordon…"))
    press(page, page.get_by_role("button", name="Uncordon node"))
    expect(page.locator("h1 [data-state]")).to_have_text("Ready")
    until(lambda: not told(platform, claim), seconds=20, what="the claim to be spared")
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def told(platform: Platform, claim: dict[str, Any]) -> bool:
    return platform.granted("GET", f"claims/{claim['uid']}/")["preempt_at"] is not None


def test_a_token_is_shown_once_and_revoked(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    page.goto("/new-token/")
    write(page, "Name", "from-a-browser")
    press(page, page.get_by_role("button", name="Create token"))
    expect(page.locator("#once")).to_contain_text("gpc_")
    press(page, page.get_by_role("link", name="Back to the tokens"))
    press(page, page.get_by_role("link", name="from-a-browser"))
    press(page, page.get_by_role("button", name="Revoke…"))
    press(page, page.get_by_role("button", name="Revoke token"))
    expect(page.get_by_role("status").filter(has_text="is revoked")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="from-a-browser")).to_contain_text("Revoked")


def test_a_charts_time_lives_in_the_url_and_outlives_a_refresh(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/")
    press(page, page.get_by_role("navigation", name="Time shown").get_by_role("link", name="6 h"))
    expect(page).to_have_url("/?hours=6")
    chart = page.locator("[data-chart=fleet-core] canvas")
    chart.evaluate("canvas => { canvas.dataset.mark = 'kept' }")
    with page.expect_response(lambda answer: answer.url.endswith("/?hours=6")):
        page.evaluate("htmx.trigger('#living', 'refresh')")
    page.wait_for_timeout(300)
    expect(chart).to_have_attribute("data-mark", "kept")
