"""What people come for, from beginning to end, by the keyboard alone: no mouse is moved in this file."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import Visitor
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]

# More stops than any page has before its content's end.
MOST_STOPS = 150


def reach(page: Page, target: Locator) -> None:
    """Tab until it has the focus."""
    target.wait_for()
    for _ in range(MOST_STOPS):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{target} is out of the keyboard's reach")


def press(page: Page, target: Locator) -> None:
    """A button or a link, by Enter."""
    reach(page, target)
    page.keyboard.press("Enter")


def write(page: Page, label: str, text: str) -> None:
    """Into a field, in the place of what was there."""
    reach(page, page.get_by_label(label, exact=True))
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(text)


def choose(page: Page, label: str, option: str) -> None:
    """In a list, by the option's first letters."""
    field = page.get_by_label(label, exact=True)
    reach(page, field)
    page.keyboard.type(option)
    expect(field).to_have_value(option)


@pytest.fixture
def stranger(chrome: Browser, platform: Platform) -> Iterator[Visitor]:
    """Somebody who has not signed in yet, and who wants nothing to move."""
    context = chrome.new_context(base_url=platform.url, reduced_motion="reduce")
    context.set_default_timeout(15_000)
    visitor = Visitor(context.new_page())
    yield visitor
    context.close()
    assert not visitor.complaints


def test_from_the_first_sign_in_to_the_first_claim(stranger: Visitor, platform: Platform) -> None:
    page = stranger.page
    platform.new_tenant("keys-first")
    page.goto("/claims/new/")
    write(page, "Name", "operator")
    write(page, "Password", (platform.state / "operator.password").read_text().strip())
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="New claim")).to_be_visible()
    choose(page, "Tenant", "keys-first")
    write(page, "Name", "first")
    press(page, page.get_by_role("button", name="Make the claim"))
    state = page.locator("[data-announce] [data-state]")
    expect(state).to_have_text("Active")
    press(page, page.get_by_role("button", name="Release…"))
    press(page, page.get_by_role("button", name="Release it"))
    expect(state).to_have_text("Released")


def test_nothing_moves_by_itself_for_those_who_ask_for_that(stranger: Visitor, platform: Platform) -> None:
    page = stranger.page
    stranger.sign_in(platform)
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    moving = "() => document.getAnimations().filter(one => one.effect.getComputedTiming().activeDuration > 100).length"
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    # The control: the dot breathes for everybody else.
    expect(page.locator(".live-dot")).to_have_css("animation-name", "breathe")


def test_a_reservation_is_made_and_given_back_before_its_end(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    platform.new_tenant("keys-book")
    page.goto("/reservations/new/")
    choose(page, "Tenant", "keys-book")
    write(page, "Name", "exam")
    write(page, "Core", "10")
    write(page, "Memory", "256")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for label, hour in (("From", "09"), ("To", "10")):
        # A field of parts: month, day, year, hour, minute, half of the day.
        reach(page, page.get_by_label(label, exact=True))
        page.keyboard.type(f"{tomorrow:%m%d%Y}")
        page.keyboard.press("Tab")
        page.keyboard.type(f"{hour}00AM")
        expect(page.get_by_label(label, exact=True)).to_have_value(f"{tomorrow:%Y-%m-%d}T{hour}:00")
    press(page, page.get_by_role("button", name="See whether it fits"))
    expect(page.get_by_role("heading", name="New reservation")).to_be_visible()
    press(page, page.get_by_role("button", name="Book it"))
    expect(page.get_by_role("heading", name="exam")).to_contain_text("Booked")
    press(page, page.locator("[data-opens=give-back-dialog]"))
    expect(page.get_by_role("dialog")).to_contain_text("free for others at once")
    press(page, page.get_by_role("dialog").get_by_role("button", name="Cancel it"))
    expect(page.get_by_role("heading", name="exam")).to_contain_text("Released")
