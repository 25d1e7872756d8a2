"""A session that ends under an open page, and the resize panel while one types."""

from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press, write
from tests.platform import PATIENCE_SECONDS, Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


def sign_in_again(page: Page, platform: Platform) -> None:
    page.get_by_label("Name", exact=True).fill("operator")
    page.get_by_label("Password", exact=True).fill((platform.state / "operator.password").read_text().strip())
    page.get_by_role("button", name="Sign in").click()


def press_until_signed_out(page: Page, button: str) -> None:
    """Press a button. A refresh of the page may lead to the sign-in first, and nothing is left to be pressed."""

    def signed_out() -> bool:
        with suppress(Error):
            press(page, page.get_by_role("button", name=button))
        return page.get_by_label("Password", exact=True).is_visible()

    page.set_default_timeout(2000)
    until(signed_out, what="the sign-in")
    page.set_default_timeout(1000 * PATIENCE_SECONDS)


def open_claim(visitor: Visitor, platform: Platform, name: str) -> dict[str, Any]:
    """Create a claim with a limit of 20 % in a tenant of its own, and open its page."""
    tenant = platform.new_tenant(f"browser-{name}")
    asked = {"tenant": tenant, "name": name, "core_request": 10, "core_limit": 20, "memory_mib": 512}
    claim: dict[str, Any] = platform.granted("POST", "claims/?wait=30", asked)
    visitor.page.goto(f"/claims/{claim['uid']}/")
    return claim


def test_a_session_that_ended_says_so_and_what_was_typed_comes_back(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    page.goto("/new-tenant/")
    write(page, "Name", "Kept over the sign-in")
    page.context.clear_cookies(name="sessionid")
    press(page, page.get_by_role("button", name="Create tenant"))
    expect(page.get_by_text("Your session has ended.")).to_be_visible()
    expect(page.get_by_text("What you typed is kept in this tab.")).to_be_visible()
    sign_in_again(page, platform)
    expect(page.get_by_label("Name", exact=True)).to_have_value("Kept over the sign-in")
    # It was for this once.
    page.reload()
    expect(page.get_by_label("Name", exact=True)).to_have_value("")


def test_what_was_typed_is_forgotten_on_another_way_out(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    page.goto("/new-tenant/")
    write(page, "Name", "Not kept")
    page.goto("/claims/")
    page.goto("/new-tenant/")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    write(page, "Name", "Not kept")
    page.goto("/")
    page.get_by_role("button", name="Sign out").click()
    sign_in_again(page, platform)
    page.get_by_role("heading", name="Overview").wait_for()
    page.goto("/new-tenant/")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")


def test_what_comes_back_over_a_newer_page_gets_the_conflict_note(visitor: Visitor, platform: Platform) -> None:
    platform.new_tenant("ended")
    page = visitor.page
    page.goto("/tenants/ended/change/")
    write(page, "Weight", "7")
    platform.granted("PATCH", "tenants/ended/", {"weight": 5})
    page.context.clear_cookies(name="sessionid")
    press(page, page.get_by_role("button", name="Apply"))
    sign_in_again(page, platform)
    expect(page.get_by_role("spinbutton", name="Weight")).to_have_value("7")
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.locator("#conflict")).to_contain_text("while you had this page open")
    expect(page.locator("#conflict")).to_contain_text("weight 5")
    expect(page.get_by_role("spinbutton", name="Weight")).to_have_value("7")


def test_new_limits_that_come_back_get_the_note_as_well(visitor: Visitor, platform: Platform) -> None:
    page, claim = visitor.page, open_claim(visitor, platform, "ended")
    write(page, "Core limit", "30")
    platform.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": 45})
    page.context.clear_cookies(name="sessionid")
    press_until_signed_out(page, "Apply")
    sign_in_again(page, platform)
    visitor.complaints.clear()  # of the answer 401, from which the sign-in follows
    expect(page.get_by_label("Core limit")).to_have_value("30")
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.get_by_role("alert")).to_contain_text("while you had this page open")
    assert platform.granted("GET", f"claims/{claim['uid']}/")["core_limit"] == 45
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def test_a_chart_that_meets_the_ended_session_first_keeps_what_was_typed(visitor: Visitor, platform: Platform) -> None:
    page, claim = visitor.page, open_claim(visitor, platform, "first")
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    write(page, "Core limit", "30")
    page.context.clear_cookies(name="sessionid")
    # The change is news to the page, which asks for new numbers.
    platform.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": 45})
    expect(page.get_by_text("Your session has ended.")).to_be_visible()
    expect(page.get_by_text("What you typed is kept in this tab.")).to_be_visible()
    sign_in_again(page, platform)
    visitor.complaints.clear()
    expect(page.get_by_label("Core limit")).to_have_value("30")
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def test_the_resize_panel_follows_the_claim_while_one_types(visitor: Visitor, platform: Platform) -> None:
    page, claim = visitor.page, open_claim(visitor, platform, "panel")
    expect(page.locator(".legend").first).to_contain_text("guaranteed")
    write(page, "Core limit", "30")
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.get_by_text("limit 20 → 30 %")).to_be_visible()
    # The button has the focus still, and a change by somebody else comes nevertheless.
    platform.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": 45})
    expect(page.get_by_label("Core limit")).to_have_value("45")
    write(page, "Memory", "768 MiB")
    platform.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": 50})
    expect(page.locator("#change")).to_contain_text("limit 45 → 50 %")
    expect(page.get_by_role("textbox", name="Memory", exact=True)).to_have_value("768 MiB")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("while you had this page open")
    expect(page.get_by_label("Core limit")).to_have_value("50")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#change")).to_contain_text("memory 512 → 768 MiB")
    write(page, "Memory", "1 GiB")
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")
    expect(page.locator("#resize-state")).to_contain_text("can no longer be resized")
    expect(page.get_by_role("textbox", name="Memory", exact=True)).to_have_value("1 GiB")
