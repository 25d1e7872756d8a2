"""Forms and live fragments under disturbances: a double click, a server that fails, another row."""

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press, write
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


# The beforeunload question of a browser, without sending anything.
SUBMITS = (
    """form => [1, 2].map(() => form.dispatchEvent(new SubmitEvent("submit", { bubbles: true, cancelable: true })))"""
)


def test_a_form_is_sent_once(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/new-token/")
    form = page.locator("form").filter(has=page.get_by_role("button", name="Create token"))
    assert form.evaluate(SUBMITS) == [True, False]
    # Read-only requests may be repeated freely.
    page.goto("/claims/")
    assert page.locator("form.filters[role=search]").evaluate(SUBMITS) == [True, True]


def test_what_was_not_done_is_said_and_can_be_tried_again(visitor: Visitor, platform: Platform) -> None:
    platform.new_tenant("browser-fails")
    asked = {"tenant": "browser-fails", "name": "fails", "core_request": 10, "core_limit": 20, "memory_mib": 512}
    claim = platform.granted("POST", "claims/?wait=30", asked)
    page, resize = visitor.page, f"**/claims/{claim['uid']}/resize/"
    page.goto(f"/claims/{claim['uid']}/")
    write(page, "Core limit", "30")
    page.route(resize, lambda route: route.fulfill(status=503))
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.get_by_role("alert")).to_contain_text("Not done: the server answered 503.")
    # The browser itself logs it in its console.
    visitor.complaints.clear()
    page.unroute(resize)
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.get_by_text("limit 20 → 30 %")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def test_focus_stays_with_what_it_was_on_when_another_row_comes_before_it(visitor: Visitor) -> None:
    page = visitor.page

    def with_another_row(route: Route) -> None:
        if "hx-request" not in route.request.headers:
            route.continue_()
            return
        answer = route.fetch()
        route.fulfill(response=answer, body="<p><button>newer</button></p>" + answer.text())

    page.goto("/access/")
    row = page.locator("#living").get_by_role("button", name="New line for sim-2")
    row.focus()
    page.route("**/access/", with_another_row)
    page.evaluate("htmx.trigger('#living', 'refresh')")
    expect(page.get_by_role("button", name="newer")).to_be_attached()
    expect(row).to_be_focused()
    page.unroute_all(behavior="ignoreErrors")  # the page keeps refreshing itself until it is closed


def test_a_new_claims_form_says_what_is_free_while_one_types(visitor: Visitor, platform: Platform) -> None:
    platform.new_tenant("browser-free", core=50)
    page = visitor.page
    page.goto("/claims/new/?tenant=browser-free")
    estimate = page.locator("#estimate")
    expect(estimate).to_contain_text("Available to browser-free in pool default")
    page.locator("summary").get_by_text("More:").click()
    page.get_by_role("button", name="Whole GPU").click()
    expect(page.get_by_label("Core request")).to_have_value("100")
    write(page, "Name", "over")
    write(page, "Core request", "40")
    expect(estimate.get_by_role("button", name="Wait in queue")).to_have_count(0)
    write(page, "Core request", "60")
    # Live: nothing is sent but for the estimate, and what is typed stays.
    expect(estimate.get_by_role("button", name="Wait in queue")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("over")
    press(page, estimate.get_by_role("button", name="Wait in queue"))
    expect(page.get_by_text("waits in the queue until there is quota for it")).to_be_visible()
    uid = page.url.rstrip("/").rpartition("/")[2]
    platform.granted("DELETE", f"claims/{uid}/?wait=20")
