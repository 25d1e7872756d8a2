"""Pages in use: a claim resized under a running program, keyboard, phones, both themes."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import violations_in_both_themes
from tests.browser.conftest import Visitor
from tests.platform import ROOT, Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]

GPULOAD = ROOT / "libvcuda" / "build" / "gpuload"
PHONE = {"width": 390, "height": 844}
# Pages that always exist.
PATHS = [
    "/",
    "/claims/",
    "/claims/new/",
    "/queue/",
    "/tenants/",
    "/audit/",
    "/rounds/",
    "/pools/",
    "/pools/default/",
    "/proposals/",
    "/proposals/?state=all",
    "/search/?q=a",
    "/help/",
    "/clusters/",
    "/new-cluster/",
    "/integrations/",
    "/policies/",
    "/access/",
    "/new-token/",
    "/new-node/",
    "/webhooks/",
    "/new-webhook/",
    "/tokens/",
    "/users/",
    "/new-invitation/",
    "/account/",
    "/account/new-token/",
    "/requests/",
    "/requests/new/",
    "/prices/",
    "/reports/",
    "/efficiency/",
    "/nodes/",
    "/reservations/",
    "/reservations/new/",
]
# Legends say "79.9 %"; a chart's present numbers, by its lines' names.
LEGEND = """figure => Object.fromEntries([...figure.querySelectorAll('.legend-item')]
    .map(item => [item.childNodes[1].textContent, parseFloat(item.querySelector('b').textContent)]))"""


@pytest.fixture
def running(platform: Platform, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Run a claim of 25 % with a GPU program under it that uses all it gets."""
    slug = f"browser-{tmp_path.name[-12:].strip('-_').replace('_', '-').lower()}"
    platform.new_tenant(slug)
    claim = platform.granted(
        "POST", "claims/?wait=30", {"tenant": slug, "name": "watched", "core_request": 25, "memory_mib": 4096}
    )
    assert claim["state"] == "active"
    program = platform.run(
        claim["uid"], str(GPULOAD), "--memory", "1GiB", "--kernel-us", "500", log=tmp_path / "gpuload.log"
    )
    yield claim
    program.terminate()
    try:
        program.wait(10)
    except subprocess.TimeoutExpired:
        program.kill()
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")


@pytest.fixture
def reserved(platform: Platform, running: dict[str, Any]) -> Iterator[str]:
    """Open the page of a reservation of tomorrow, released at the end: it would block others' claims."""
    begin = datetime.now(UTC) + timedelta(days=1)
    window = {"start_at": begin.isoformat(), "end_at": (begin + timedelta(hours=1)).isoformat()}
    asked = {"tenant": running["tenant"], "name": "exam", "core_request": 20, "memory_mib": 256}
    uid = platform.granted("POST", "reservations/", asked | window)["uid"]
    yield f"/reservations/{uid}/"
    platform.granted("DELETE", f"reservations/{uid}/")


def test_a_resize_is_seen_in_the_chart_of_the_running_program(visitor: Visitor, running: dict[str, Any]) -> None:
    page = visitor.page
    page.goto(f"/claims/{running['uid']}/")
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    until(lambda: near(now(page), used=25, limit=25), what="the program to use its 25 %")

    page.get_by_label("Core limit", exact=True).fill("75")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#change")).to_contain_text("Applied in")
    expect(page.locator("#change")).to_contain_text("limit 25 → 75 %")
    until(lambda: near(now(page), used=75, limit=75), what="chart and program to follow")

    page.get_by_text("Show data table").first.click()
    table = page.locator("[data-chart=core] [data-rows] tr")
    # The page fills it when it is opened.
    until(lambda: table.count() >= 3, what="the table's rows")
    rows = table.all_inner_texts()
    limits = [row.split("\t")[2] for row in rows]
    assert set(limits) == {"25.00", "75.00"}, rows


def test_a_resize_that_is_refused_says_why_and_keeps_what_was_typed(visitor: Visitor, running: dict[str, Any]) -> None:
    page = visitor.page
    page.goto(f"/claims/{running['uid']}/")
    page.get_by_label("Core limit", exact=True).fill("10")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("core_limit 10 is below core_request 25")
    page.wait_for_timeout(1500)
    assert page.get_by_label("Core limit", exact=True).input_value() == "10"
    # The refusal's status is an error to the browser's console; here it is expected.
    visitor.complaints[:] = [text for text in visitor.complaints if "422" not in text]


def test_a_resize_by_others_appears_without_a_reload(
    visitor: Visitor, platform: Platform, running: dict[str, Any]
) -> None:
    page = visitor.page
    page.goto(f"/claims/{running['uid']}/")
    expect(page.locator("#live")).to_have_attribute("data-mode", "live")
    platform.granted("PATCH", f"claims/{running['uid']}/?wait=10", {"core_limit": 60})
    expect(page.locator("#change")).to_contain_text("limit 25 → 60 %")
    expect(page.get_by_label("Core limit", exact=True)).to_have_value("60")


def test_a_claim_is_made_by_form_and_released_after_a_word_of_warning(visitor: Visitor, platform: Platform) -> None:
    page = visitor.page
    platform.new_tenant("browser-forms")
    page.goto("/claims/new/")
    page.get_by_label("Tenant", exact=True).select_option("browser-forms")
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_role("button", name="Create claim").click()
    state = page.locator("[data-announce] [data-state]")
    expect(state).to_have_text("Active")
    expect(page.locator("#announcer")).to_contain_text("Active")
    page.get_by_role("button", name="Release…").click()
    expect(page.get_by_role("dialog")).to_contain_text("SIGTERM")
    page.get_by_role("button", name="Release claim").click()
    expect(state).to_have_text("Released")


def test_without_a_socket_the_page_polls_and_says_so(visitor: Visitor, running: dict[str, Any]) -> None:
    page = visitor.page
    page.route_web_socket("**/ws/live/**", lambda socket: socket.close())
    page.goto(f"/claims/{running['uid']}/")
    expect(page.locator("#live")).to_have_attribute("data-mode", "polling")
    expect(page.locator("#live")).to_contain_text("polling")
    until(lambda: near(now(page), used=25, limit=25), what="the chart to be polled")


def test_the_chosen_theme_is_kept(visitor: Visitor) -> None:
    page = visitor.page
    page.emulate_media(color_scheme="light")
    page.goto("/")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    page.goto("/claims/")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")


def test_the_keyboard_reaches_the_content_first(visitor: Visitor) -> None:
    page = visitor.page
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(
    visitor: Visitor, platform: Platform, running: dict[str, Any], reserved: str
) -> None:
    page = visitor.page
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    hook = {"tenant": running["tenant"], "url": "https://hooks.invalid/", "events": ["claim.idle"]}
    node = running["assignments"][0]["node"]
    paths = [
        *PATHS,
        f"/claims/{running['uid']}/",
        f"/tenants/{running['tenant']}/",
        f"/tenants/{running['tenant']}/limits/",
        f"/tenants/{running['tenant']}/change/",
        f"/nodes/{node}/",
        f"/nodes/{node}/drain/",
        f"/gpus/{running['assignments'][0]['gpu_uuid']}/",
        f"/webhooks/{platform.granted('POST', 'webhooks/', hook)['uid']}/",
        f"/tokens/{platform.granted('GET', 'tokens/')['results'][0]['key']}/",
        reserved,
    ]
    for path in paths:
        page.goto(path)
        page.wait_for_timeout(400)
        assert violations_in_both_themes(page) == [], path
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        # Charts are redrawn after the window has changed.
        until(
            lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"),
            what=f"{path} to be no wider than a phone",
        )
        page.set_viewport_size({"width": 1280, "height": 900})
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="gpucloud").wait_for()
    assert violations_in_both_themes(page) == []


def test_on_a_phone_a_tables_row_is_a_card_with_all_its_values(visitor: Visitor) -> None:
    page = visitor.page
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto("/nodes/")
    memory = page.get_by_role("row").filter(has_text="sim-1").locator("td[data-label='Memory allocated']")
    expect(memory).to_be_visible()
    # Later content is labelled too.
    memory.evaluate("cell => cell.dataset.label = ''")
    page.evaluate("htmx.trigger('#living', 'refresh')")
    expect(memory).to_be_visible()


def now(page: Page) -> dict[str, float]:
    """Return the core chart's legend at this moment."""
    values: dict[str, float] = page.locator("[data-chart=core]").first.evaluate(LEGEND)
    return values


def near(values: dict[str, float], *, used: float, limit: float) -> bool:
    # Other tests share the machine's two cores with the simulated GPU.
    return values["limit"] == limit and abs(values["used"] - used) <= 0.2 * used
