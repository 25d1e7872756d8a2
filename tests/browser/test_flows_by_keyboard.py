"""Main tasks from beginning to end, by the keyboard alone: no mouse is moved in this file."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import choose, press, reach, write
from tests.platform import Platform

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture
def stranger(chrome: Browser, platform: Platform) -> Iterator[Visitor]:
    """Return a visitor who is not signed in and prefers reduced motion."""
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
    press(page, page.get_by_role("button", name="Create claim"))
    state = page.locator("[data-announce] [data-state]")
    expect(state).to_have_text("Active")
    press(page, page.get_by_role("button", name="Release…"))
    press(page, page.get_by_role("button", name="Release claim"))
    expect(state).to_have_text("Released")


def test_nothing_moves_by_itself_for_those_who_ask_for_that(stranger: Visitor, platform: Platform) -> None:
    page = stranger.page
    stranger.sign_in(platform)
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    moving = "() => document.getAnimations().filter(one => one.effect.getComputedTiming().activeDuration > 100).length"
    assert page.evaluate(moving) == 0
    # A node that waits for an agent: its icon turns for other readers.
    page.locator("#main").evaluate("main => { main.dataset.pending = '' }")
    assert page.evaluate(moving) == 0
    page.emulate_media(reduced_motion="no-preference")
    expect(page.locator("#main .icon").first).to_have_css("animation-name", "turn")


def test_a_page_that_only_stands_open_is_not_drawn_all_the_time(visitor: Visitor) -> None:
    """An endless animation would repaint it sixty times a second."""
    page = visitor.page
    page.goto("/")
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    endless = (
        "() => document.getAnimations().filter(one => one.effect.getComputedTiming().iterations === Infinity).length"
    )
    assert page.evaluate(endless) == 0


def test_a_quota_is_lowered_after_a_look_at_what_it_would_do_and_at_who_was_faster(
    visitor: Visitor, platform: Platform
) -> None:
    page = visitor.page
    platform.new_tenant("keys-quota", core=300)
    asked = {"tenant": "keys-quota", "core_request": 50, "memory_mib": 256}
    claim = platform.granted("POST", "claims/?wait=30", asked)["uid"]
    quota = platform.granted("GET", "quotas/?tenant=keys-quota&resource=core_percent")["results"][0]
    page.goto("/tenants/keys-quota/")
    press(page, page.locator(f"a[href='/quotas/{quota['id']}/']").first)
    write(page, "Quota", "40")
    press(page, page.get_by_role("button", name="Preview"))
    expect(page.locator("#preview")).to_contain_text("would hold 10 %")
    platform.granted("PATCH", f"quotas/{quota['id']}/", {"hard": 200}, If_Match="*")
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.locator("#conflict")).to_contain_text(re.compile(r"Changed by .+ at \d\d:\d\d:\d\d"))
    expect(page.locator("#conflict")).to_contain_text("quota 200 %")
    expect(page.get_by_label("Quota", exact=True)).to_have_value("40")
    assert platform.granted("GET", f"quotas/{quota['id']}/")["hard"] == 200
    press(page, page.get_by_role("button", name="Apply"))
    expect(page.get_by_text("50 % of 40 % used")).to_be_visible()
    platform.granted("DELETE", f"claims/{claim}/?wait=20")


def test_a_claim_that_waits_says_why_from_the_queue_on(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    platform.new_tenant("keys-queue")
    # The node of this pool has four GPUs, and the demo's programs on them.
    asked = {"tenant": "keys-queue", "name": "too-wide", "core_request": 100, "gpu_count": 4, "memory_mib": 1}
    claim = platform.granted("POST", "claims/?wait=5", asked | {"pool": "shared"})
    assert claim["state"] == "queued"
    reason = claim["reasons"][0]["detail"]
    page.goto("/")
    press(page, page.get_by_role("navigation").get_by_role("link", name="Queue"))
    choose(page, "Pool", "shared")
    expect(page.get_by_role("row").filter(has_text="too-wide")).to_contain_text(reason)
    press(page, page.get_by_role("link", name="too-wide"))
    expect(page.get_by_role("heading", name="too-wide")).to_be_visible()
    expect(page.locator("#living")).to_contain_text(reason)
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


def test_a_reservation_is_made_begins_and_is_given_back_before_its_end(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    platform.new_tenant("keys-book")
    page.goto("/reservations/new/")
    choose(page, "Tenant", "keys-book")
    write(page, "Name", "exam")
    write(page, "Core", "10")
    write(page, "Memory", "256 MiB")
    # The form takes whole minutes, and the service accepts a start less than one ago.
    begin = (datetime.now(UTC) + timedelta(seconds=20)).replace(second=0, microsecond=0)
    for label, moment in (("From", begin), ("To", begin + timedelta(hours=1))):
        # A field of parts: month, day, year, hour, minute, half of the day.
        reach(page, page.get_by_label(label, exact=True))
        page.keyboard.type(f"{moment:%m%d%Y}")
        page.keyboard.press("Tab")
        page.keyboard.type(f"{moment:%I%M%p}")
        expect(page.get_by_label(label, exact=True)).to_have_value(f"{moment:%Y-%m-%dT%H:%M}")
    press(page, page.get_by_role("button", name="See whether it fits"))
    expect(page.get_by_text("Nothing is booked yet")).to_be_visible()
    press(page, page.get_by_role("button", name="Create reservation"))
    expect(page.get_by_role("heading", name="exam")).to_contain_text("Active")
    press(page, page.get_by_role("button", name="Give back early"))
    expect(page.get_by_role("dialog")).to_contain_text("the rest of the window is free for others")
    press(page, page.get_by_role("dialog").get_by_role("button", name="Release reservation"))
    expect(page.get_by_role("heading", name="exam")).to_contain_text("Released")


def test_a_node_is_cordoned_after_a_word_of_what_stays_and_the_log_says_who_did_it(
    visitor: Visitor, platform: Platform
) -> None:
    page = visitor.page
    page.goto("/nodes/sim-1/")
    cordon(page, "Cordon")
    expect(page.get_by_text("takes no new claims; those on it stay")).to_be_visible()
    assert platform.granted("GET", "nodes/sim-1/")["cordoned"] is True
    cordon(page, "Uncordon")
    expect(page.get_by_text("takes new claims again")).to_be_visible()
    for name in ("Teams", "Audit"):
        press(page, page.get_by_role("navigation").get_by_role("link", name=name))
    write(page, "Of what", "sim-1")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("object_id=sim-1"))
    row: Any = page.get_by_role("row").filter(has_text="cordoned").first
    expect(row).to_contain_text("user:operator")
    expect(row).to_contain_text("127.0.0.1")
    expect(row).to_contain_text(re.compile(r"cordoned\s+true → false"))


def cordon(page: Page, word: str) -> None:
    """Cordon by the dialog, after leaving it with Escape first: the focus returns to where it was."""
    button = page.locator("[data-opens=cordon-dialog]")
    press(page, button)
    expect(page.get_by_role("dialog")).to_contain_text(f"{word} sim-1?")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    press(page, page.get_by_role("dialog").get_by_role("button", name=f"{word} node"))
