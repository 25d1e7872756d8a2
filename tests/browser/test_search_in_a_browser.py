"""Search and the glossary, by the keyboard alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import violations
from tests.browser.conftest import Visitor
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture
def named_claim(platform: Platform) -> Iterator[dict[str, Any]]:
    """Create a claim with a unique name."""
    platform.new_tenant("browser-search")
    asked = {"tenant": "browser-search", "name": "needle-in-hay", "core_request": 1, "memory_mib": 64}
    claim = platform.granted("POST", "claims/", asked)
    yield claim
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def test_a_claim_is_found_and_opened_from_any_page_without_a_mouse(
    visitor: Visitor, platform: Platform, named_claim: dict[str, Any]
) -> None:
    page = visitor.page
    page.goto("/queue/")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("textbox", name="Search for")).to_be_focused()
    page.keyboard.type("needle")
    hit = page.locator("#palette-found a.hit").first
    expect(hit).to_contain_text("needle-in-hay")
    assert violations(page) == []
    page.keyboard.press("ArrowDown")
    expect(hit).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/claims/{named_claim['uid']}/")

    page.keyboard.press("/")
    page.keyboard.type("audit")
    page.keyboard.press("Enter")
    # If the answer was not there yet, the search page found the same.
    page.wait_for_url(lambda url: url.endswith(("/audit/", "q=audit")))


def test_escape_closes_and_a_slash_in_a_field_is_a_slash(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/tenants/")
    field = page.locator("main input[type=search]")
    field.focus()
    page.keyboard.type("a/b")
    assert field.input_value() == "a/b"
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()
    expect(field).to_be_focused()


def test_a_word_says_what_it_means_until_escape(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/nodes/")
    word = page.get_by_role("button", name="What is “Allocated”?").first
    word.focus()
    page.keyboard.press("Enter")
    meaning = page.locator(".meaning:popover-open")
    expect(meaning).to_contain_text("No share is allocated twice")
    # An open popover stays while the page refreshes.
    page.wait_for_timeout(6000)
    expect(meaning).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.locator(".meaning:popover-open")).to_have_count(0)
