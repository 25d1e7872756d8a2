"""Moving a limit on a GPU's page: the running program and its chart follow."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press
from tests.browser.test_pages_in_a_browser import near, now, running
from tests.platform import Platform, until

__all__ = ["running"]
pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]


def test_the_end_of_a_share_is_dragged_and_apply_makes_it_so(
    visitor: Visitor, running: dict[str, Any], platform: Platform
) -> None:
    page = visitor.page
    claim = platform.granted("PATCH", f"claims/{running['uid']}/?wait=20", {"core_request": 25, "core_limit": 25})
    page.goto(f"/gpus/{claim['assignments'][0]['gpu_uuid']}/")
    form = page.locator(f"#share-of-{claim['uid']}")
    # A refresh replaces the bar: for a moment there is none.
    box = until(page.get_by_label("Core by assignment").bounding_box, what="the bar to stand on the page")
    grip = page.locator(f'[data-moves="{claim["uid"]}-core_request"]')
    end = float(grip.get_attribute("x1") or "")
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * end / 100, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (end + 8) / 100, middle, steps=4)
    # A bar that is refreshed while it is dragged would be lost.
    page.evaluate("htmx.trigger('#living', 'refresh')")
    page.wait_for_timeout(500)
    page.mouse.move(box["x"] + box["width"] * (end + 15) / 100, middle, steps=4)
    page.mouse.up()
    expect(form.get_by_label("Core request", exact=True)).to_have_value("40")
    expect(form.get_by_label("Core limit", exact=True)).to_have_value("40")
    expect(form.get_by_role("button", name="Apply")).to_be_focused()
    assert platform.granted("GET", f"claims/{claim['uid']}/")["core_request"] == 25
    page.keyboard.press("Enter")
    expect(form.get_by_text("request 25 → 40 %")).to_be_visible()
    assert platform.granted("GET", f"claims/{claim['uid']}/")["core_limit"] == 40


def test_a_slider_moves_the_limit_of_a_running_program(
    visitor: Visitor, running: dict[str, Any], platform: Platform
) -> None:
    page, claim = visitor.page, platform.granted("GET", f"claims/{running['uid']}/")
    platform.granted("PATCH", f"claims/{running['uid']}/?wait=20", {"core_limit": 25})
    page.goto(f"/gpus/{claim['assignments'][0]['gpu_uuid']}/")
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    until(lambda: near(now(page), used=25, limit=25), what="the program to use its 25 %")
    slider = page.get_by_role("slider").first
    slider.focus()
    for _ in range(35):
        page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Core limit", exact=True)).to_have_value("60")
    press(page, page.get_by_role("button", name="Apply").first)
    expect(page.get_by_text("limit 25 → 60 %")).to_be_visible()
    until(lambda: near(now(page), used=60, limit=60), what="chart and program to follow")
