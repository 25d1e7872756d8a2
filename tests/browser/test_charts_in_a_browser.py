"""Charts: the range, zoom by mouse and keyboard, and words in the place of an empty chart."""

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.conftest import Visitor
from tests.browser.keyboard import press
from tests.platform import Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]
NUMBERS = count(1)
SERIES = re.compile(r"/series/\?range=")


@pytest.fixture
def claim(platform: Platform) -> Iterator[dict[str, Any]]:
    """Return a claim; release it at the end, as it would be on the pages of other tests."""
    tenant = f"charts-{next(NUMBERS)}"
    platform.new_tenant(tenant)
    asked = {"tenant": tenant, "name": "charted", "core_request": 10, "core_limit": 20, "memory_mib": 512}
    made = platform.granted("POST", "claims/?wait=30", asked)
    yield made
    platform.granted("DELETE", f"claims/{made['uid']}/?wait=20")


def open_claim(page: Page, claim: dict[str, Any]) -> Locator:
    """Open the claim's page, and return its first chart once it has measurements."""
    page.goto(f"/claims/{claim['uid']}/")
    first = page.locator(".chart").first
    expect(first.locator(".legend-item b").first).to_have_text(re.compile(r"\d"))
    return first


def select_by_mouse(page: Page, chart: Locator, begin: float, end: float) -> None:
    """Drag over a part of the chart."""
    over = chart.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 30, steps=5)
    page.mouse.up()


def test_a_span_is_selected_with_the_mouse_and_reset(visitor: Visitor, claim: dict[str, Any]) -> None:
    page, chart = visitor.page, open_claim(visitor.page, claim)
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_hidden()
    with page.expect_response(re.compile(r"from=[\d.]+&to=[\d.]+")) as answer:
        select_by_mouse(page, chart, 0.5, 0.75)
    expect(reset).to_be_visible()
    assert answer.value.json()["window_seconds"] == pytest.approx(75, abs=3)
    expect(page.locator("#announcer")).to_contain_text("Charts show")
    with page.expect_response(lambda one: one.url.endswith("range=5m")):
        reset.click()
    expect(reset).to_be_hidden()


def test_heads_name_the_span_that_is_shown(visitor: Visitor, claim: dict[str, Any]) -> None:
    page, chart = visitor.page, open_claim(visitor.page, claim)
    head = page.locator("article .card-head [data-span]").first
    expect(head).to_have_text("last 5 minutes")
    select_by_mouse(page, chart, 0.5, 0.75)
    expect(head).to_have_text(re.compile(r"^(.+ )?\d\d:\d\d:\d\d – (.+ )?\d\d:\d\d:\d\d$"))
    page.get_by_role("button", name="Reset zoom").click()
    expect(head).to_have_text("last 5 minutes")


def test_a_nodes_charts_have_ranges_and_zoom(visitor: Visitor, claim: dict[str, Any], platform: Platform) -> None:
    page = visitor.page
    gpu = platform.granted("GET", f"gpus/{claim['assignments'][0]['gpu_uuid']}/")
    page.goto(f"/nodes/{gpu['node']}/?range=1h")
    chart = page.locator(f'[data-chart="gpu"][data-key="{gpu["uuid"]}"]')
    expect(chart.locator("[data-span]")).to_have_text("last hour")
    with page.expect_response(re.compile(r"/series/\?range=1h&from=[\d.]+&to=[\d.]+")) as answer:
        select_by_mouse(page, chart, 0.5, 0.75)
    assert answer.value.json()["window_seconds"] == pytest.approx(900, abs=30)
    expect(chart.locator("[data-span]")).to_have_text(re.compile(r"\d\d:\d\d:\d\d – "))


def lend(route: Route) -> None:
    """Answer with a quarter of each GPU's memory lent."""
    answer = route.fetch()
    data = answer.json()
    for series in data["series"]:
        if "memory_mib" in series:
            series["borrowed_mib"] = [20_000] * len(series["times"])
    route.fulfill(response=answer, body=json.dumps(data))


def test_what_is_lent_of_a_gpu_is_drawn_only_where_something_is(
    visitor: Visitor, claim: dict[str, Any], platform: Platform
) -> None:
    page = visitor.page
    gpu = platform.granted("GET", f"gpus/{claim['assignments'][0]['gpu_uuid']}/")
    page.goto(f"/nodes/{gpu['node']}/?range=1h")
    chart = page.locator(f'[data-chart="gpu"][data-key="{gpu["uuid"]}"]')
    lent = chart.locator(".legend-item", has_text="lent")
    expect(chart.locator(".legend-item", has_text="memory")).to_be_visible()
    expect(lent).to_be_hidden()
    page.route(SERIES, lend)
    select_by_mouse(page, chart, 0.5, 1.0)
    expect(lent).to_be_visible()
    expect(lent.locator("b")).to_have_text(re.compile(rf"^{round(100 * 20_000 / gpu['memory_mib'])} %"))


LABELS = """
    window.cut = []; window.drawn = 0;
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
      if (this.textAlign === "center") {
        const right = this.getTransform().e + x + this.measureText(text).width / 2;
        window.drawn += 1;
        if (right > this.canvas.width + 0.5) window.cut.push(`${text}: ${right} of ${this.canvas.width}`);
      }
      return fillText.apply(this, arguments);
    };
"""


@pytest.mark.parametrize("width", [390, 1440])
def test_no_label_of_a_time_is_cut_off(visitor: Visitor, claim: dict[str, Any], width: int) -> None:
    page = visitor.page
    page.add_init_script(LABELS)
    page.set_viewport_size({"width": width, "height": 900})
    chart = open_claim(page, claim)
    # As the charts slide, each distance of the last label from the edge comes up: here, by spans of other lengths.
    for tenth in range(10):
        select_by_mouse(page, chart, 0.3, 0.62 + tenth / 33)
        expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
        page.wait_for_timeout(150)
        page.get_by_role("button", name="Reset zoom").click()
        page.wait_for_timeout(100)
    assert page.evaluate("window.drawn") > 50
    assert page.evaluate("window.cut") == []


def test_a_span_is_selected_with_the_keyboard_and_reset(visitor: Visitor, claim: dict[str, Any]) -> None:
    page, chart = visitor.page, open_claim(visitor.page, claim)
    chart.locator(".plot").focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    for _ in range(10):
        page.keyboard.press("Shift+ArrowLeft")
    with page.expect_response(re.compile(r"from=[\d.]+&to=[\d.]+")) as answer:
        page.keyboard.press("Enter")
    assert answer.value.json()["window_seconds"] == pytest.approx(50, abs=3)
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()


def test_a_range_is_chosen_and_stays_in_the_url(visitor: Visitor, claim: dict[str, Any], platform: Platform) -> None:
    page = visitor.page
    open_claim(page, claim)
    press(page, page.get_by_role("link", name="30 d", exact=True))
    expect(page).to_have_url(re.compile(r"\?range=30d$"))
    expect(page.get_by_text("last 30 days").first).to_be_visible()
    gpu = claim["assignments"][0]["gpu_uuid"]
    page.goto(f"/gpus/{gpu}/?range=24h")
    until(
        lambda: page.locator(f'[data-chart="gpu"][data-key="{gpu}"] .u-over').count() == 1, what="the whole GPU’s chart"
    )


def test_an_empty_chart_says_that_it_is_collecting(visitor: Visitor, claim: dict[str, Any]) -> None:
    page, chart = visitor.page, open_claim(visitor.page, claim)
    expect(chart.locator(".plot-note")).to_be_hidden()

    def empty(route: Route) -> None:
        answer = route.fetch().json()
        series = [{name: value if name == "key" else [] for name, value in one.items()} for one in answer["series"]]
        route.fulfill(body=json.dumps(answer | {"series": series, "live": False}), content_type="application/json")

    page.route(SERIES, empty)
    select_by_mouse(page, chart, 0.5, 0.75)
    expect(chart.locator(".plot-note")).to_have_text("Collecting measurements…")
    page.unroute(SERIES)
