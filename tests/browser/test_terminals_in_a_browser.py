"""A terminal in a job's run on the job's page: typed, seen, left by keyboard, ended, lost and opened again."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.accessibility import violations_in_both_themes
from tests.browser.conftest import Visitor
from tests.browser.persons import PHONE, TOO_WIDE
from tests.platform import Platform, until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs"),
]

# The colour of a cell: true colours are styles of their own, which the policy must not stop.
COLOUR = """text => {
    const cell = [...document.querySelectorAll('.xterm-rows span')].find(one => one.textContent === text);
    return cell && getComputedStyle(cell).backgroundColor; }"""
AT_THE_TERMINAL = "document.activeElement.matches('.xterm-helper-textarea')"


@pytest.fixture
def job(platform: Platform) -> Iterator[dict[str, Any]]:
    """Return a job that runs; stop it at the end."""
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], what="the node to offer jobs")
    tenant = platform.new_tenant(f"terminals-{os.urandom(4).hex()}")
    asked = {"tenant": tenant, "name": "train", "core_request": 5, "memory_mib": 64}
    asked["command"] = ["sh", "-c", "seq 400; exec sleep 600"]
    made = platform.granted("POST", "jobs/", asked)
    path = f"jobs/{made['uid']}/"
    until(lambda: platform.granted("GET", path)["state"] == "running", what="the job to run")
    yield made
    until(lambda: platform.call("POST", f"{path}stop/", {}).status < 500, what="the job to be stopped")


def open_terminal(page: Page, job: dict[str, Any]) -> Locator:
    """Open the job's page and a terminal there; return the terminal's rows."""
    page.goto(f"/jobs/{job['uid']}/")
    page.get_by_role("button", name="Open terminal").click()
    expect(page.get_by_role("status").filter(has_text="The terminal is open.")).to_be_visible()
    expect(page.get_by_role("button", name="Open terminal")).to_be_hidden()
    return page.locator(".xterm-rows")


def enter(page: Page, line: str) -> None:
    """Type a line."""
    page.keyboard.type(line)
    page.keyboard.press("Enter")


def test_a_shell_in_the_run_with_colours_sizes_and_its_exit_code(visitor: Visitor, job: dict[str, Any]) -> None:
    page = visitor.page
    rows = open_terminal(page, job)
    # Keys of the page's own are the shell's here: "/" is no search, Ctrl-K deletes to the line's end.
    enter(page, "echo claim/$GPUCLOUD_CLAIM/$((6 * 7))")
    expect(rows).to_contain_text(f"claim/{job['claim']}/42")
    page.keyboard.type("echo kept; echo cut")
    for _ in "; echo cut":
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Control+k")
    page.keyboard.press("Enter")
    expect(rows).to_contain_text(re.compile(r"echo kept[^;c]*kept"))
    expect(page.locator("#palette")).to_be_hidden()
    enter(page, r"printf '\033[48;2;10;120;60mtrue\033[0m\n'")
    until(lambda: page.evaluate(COLOUR, "true") == "rgb(10, 120, 60)", what="a true colour")
    # Its size is the program's, and follows the window's.
    enter(page, "clear; stty size")
    wide = _columns(rows)
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    enter(page, "clear; stty size")
    until(lambda: 20 < _columns(rows) < wide, what="the size to follow")
    assert page.evaluate(TOO_WIDE) == []
    page.set_viewport_size({"width": 1280, "height": 900})
    enter(page, "exit 7")
    status = page.get_by_role("status").filter(has_text="exit code 7")
    expect(status).to_have_text("The program has ended with exit code 7.")
    expect(page.get_by_role("button", name="Open again")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Open again")).to_be_hidden()
    enter(page, "echo again $((40 + 2))")
    expect(rows).to_contain_text("again 42")
    expect(rows).not_to_contain_text("claim/")


def _columns(rows: Locator) -> int:
    """Return the columns that `stty size` has printed."""
    found = until(lambda: re.search(r"^\d+ (\d+)\s*$", rows.inner_text(), re.MULTILINE), what="a size")
    return int(found[1])


def test_long_output_leaves_the_terminal_in_place(visitor: Visitor, job: dict[str, Any]) -> None:
    page = visitor.page
    open_terminal(page, job)
    output = page.get_by_role("log", name="Output")
    expect(output).to_contain_text("400")
    assert output.evaluate(
        "log => log.clientHeight <= innerHeight / 2 && log.scrollHeight > 1000 && log.scrollTop === 0"
    )
    # Read further up, it stays there while the page is fetched again.
    output.evaluate("log => { log.scrollTop = -300; log.marked = true; }")
    until(lambda: output.evaluate("log => !log.marked"), what="the page to be fetched again")
    assert output.evaluate("log => log.scrollTop") == -300


def test_no_keyboard_trap_and_words_for_screen_readers(visitor: Visitor, job: dict[str, Any]) -> None:
    page = visitor.page
    rows = open_terminal(page, job)
    assert page.evaluate(AT_THE_TERMINAL)
    # Tab completes a word: it is the shell's.
    page.keyboard.press("Tab")
    assert page.evaluate(AT_THE_TERMINAL)
    page.keyboard.press("Control+Shift+ArrowUp")
    expect(page.get_by_role("button", name="Close terminal")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    reader = page.get_by_role("button", name="Screen reader mode")
    expect(reader).to_be_focused()
    page.keyboard.press("Enter")
    expect(reader).to_have_attribute("aria-pressed", "true")
    page.locator(".xterm-helper-textarea").focus()
    enter(page, "echo read $((20 + 1))")
    expect(rows).to_contain_text("read 21")
    expect(page.locator(".xterm-accessibility-tree")).to_contain_text("read 21")
    page.keyboard.press("Control+Shift+ArrowDown")
    expect(page.get_by_role("status").filter(has_text="The terminal is open.")).to_be_focused()
    # Colours are measured where they end, not on their way there.
    page.emulate_media(reduced_motion="reduce")
    assert violations_in_both_themes(page) == []
    page.get_by_role("button", name="Close terminal").click()
    expect(page.get_by_role("button", name="Open terminal")).to_be_focused()
    expect(page.locator("#terminal")).to_be_hidden()


def test_a_selection_is_copied_and_lines_are_pasted(visitor: Visitor, job: dict[str, Any]) -> None:
    page = visitor.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    rows = open_terminal(page, job)
    # A paste of more than one message, cut by nobody.
    page.evaluate("text => navigator.clipboard.writeText(text)", f"echo {'x' * 3000} | wc -c; echo end $((1 + 1))\n")
    page.keyboard.press("Control+Shift+V")
    page.keyboard.press("Enter")
    expect(rows).to_contain_text("3001")
    expect(rows).to_contain_text("end 2")
    line = page.locator(".xterm-rows > div").filter(has_text=re.compile(r"^3001\s*$")).last
    line.dblclick(force=True, position={"x": 5, "y": 5})
    page.keyboard.press("Control+Shift+C")
    until(lambda: page.evaluate("navigator.clipboard.readText()") == "3001", what="the selection to be copied")


def test_a_flood_of_output_waits_in_the_program(visitor: Visitor, job: dict[str, Any]) -> None:
    page = visitor.page
    rows = open_terminal(page, job)
    enter(page, "yes 'a flood of output, faster than any page draws'")
    expect(rows).to_contain_text("a flood of output")
    page.wait_for_timeout(3000)
    # The page answers, and what was typed is not behind minutes of output.
    # By the key that phones get.
    page.locator("[data-sends=interrupt]").dispatch_event("click")
    enter(page, "clear; echo calm $((3 + 4))")
    expect(rows).to_contain_text("calm 7", timeout=15_000)


def test_a_lost_server_is_said_and_the_terminal_opens_again(
    visitor: Visitor, platform: Platform, job: dict[str, Any]
) -> None:
    page = visitor.page
    rows = open_terminal(page, job)
    enter(page, "echo before $((5 + 5))")
    expect(rows).to_contain_text("before 10")
    platform.kill("server")
    expect(page.locator("#terminal")).to_contain_text("The connection to the server was lost")
    again = page.get_by_role("button", name="Open again")
    expect(again).to_be_focused()
    # The node's agent is back as soon as its server is.
    until(lambda: _opens(page), seconds=120, what="the terminal to open again")
    expect(rows).not_to_contain_text("before 10")
    enter(page, "echo after $((6 + 6))")
    expect(rows).to_contain_text("after 12")
    visitor.complaints.clear()  # of connections to a server that is away


def _opens(page: Page) -> bool:
    """Return True if the terminal is open, or opens now."""
    again = page.get_by_role("button", name="Open again")
    if again.is_visible():
        again.click()
    page.wait_for_timeout(1000)
    return page.get_by_role("status").filter(has_text="The terminal is open.").is_visible()


def test_the_end_of_the_run_is_said_and_offers_no_other(
    visitor: Visitor, platform: Platform, job: dict[str, Any]
) -> None:
    page = visitor.page
    open_terminal(page, job)
    platform.granted("POST", f"jobs/{job['uid']}/stop/", {})
    expect(page.locator("#terminal")).to_contain_text(re.compile("has ended|was closed"))
    expect(page.get_by_role("button", name="Open terminal")).to_be_hidden()
    page.get_by_role("button", name="Open again").click()
    expect(page.locator("#terminal")).to_contain_text("A terminal needs a job that runs")
    page.reload()
    expect(page.get_by_role("heading", name="train")).to_be_visible()
    expect(page.locator("#terminal")).to_have_count(0)
