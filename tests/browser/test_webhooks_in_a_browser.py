"""Webhooks by the keyboard alone: one is created and tested, and its result appears while a message is open."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press, reach, write

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


def test_a_webhook_is_made_tried_and_removed(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/webhooks/")
    press(page, page.get_by_role("link", name="New webhook"))
    # A name that no name server knows.
    write(page, "URL", "https://hooks.invalid/in")
    reach(page, page.get_by_label("claim.idle"))
    page.keyboard.press("Space")
    press(page, page.get_by_role("button", name="Create webhook"))
    expect(page.locator("#once")).to_contain_text("whsec_")
    press(page, page.get_by_role("button", name="Send a test"))

    row = page.get_by_role("row").filter(has_text="webhook.test")
    summary = row.locator("summary")
    press(page, summary)
    expect(row.locator("pre")).to_contain_text('"type": "webhook.test"')
    # The page was not reloaded, and the open message stays, with the focus on it.
    expect(page.locator("[data-announce=Webhook] [data-state]")).to_have_text("Failing")
    expect(row).to_contain_text("The name hooks.invalid is unknown")
    page.evaluate("htmx.trigger('#living', 'refresh')")
    page.wait_for_timeout(500)
    expect(row.locator("pre")).to_be_visible()
    expect(summary).to_be_focused()

    press(page, page.get_by_role("button", name="Remove…"))
    expect(page.get_by_role("dialog")).to_contain_text("cannot be undone")
    press(page, page.get_by_role("dialog").get_by_role("button", name="Remove"))
    expect(page.get_by_role("status").filter(has_text="is removed")).to_be_visible()


def test_single_rights_are_asked_for_only_where_one_chooses(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/new-token/")
    right = page.get_by_label("claims:read")
    expect(right).to_be_hidden()
    page.get_by_label("Permissions", exact=True).select_option("choose")
    expect(right).to_be_visible()
    write(page, "Name", "chosen")
    reach(page, right)
    page.keyboard.press("Space")
    press(page, page.get_by_role("button", name="Create token"))
    expect(page.locator("#once")).to_contain_text("gpc_")
    page.goto("/tokens/?tenant=-&state=alive")
    press(page, page.get_by_role("link", name="chosen").first)
    expect(page.locator(".rights")).to_have_text(["claims:read Claims, queue, reservations, proposals", "nothing"])
    press(page, page.get_by_role("button", name="Replace…"))
    page.get_by_label("The old token works", exact=True).select_option("0")
    press(page, page.get_by_role("button", name="Replace token"))
    expect(page.locator("#once")).to_contain_text("gpc_")
    expect(page.get_by_text("is refused from now on")).to_be_visible()
