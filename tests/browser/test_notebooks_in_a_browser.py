"""A notebook in a real browser: opened from its page, resized there while a cell runs, and ended by its idle rule."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Page, expect

from tests.browser import jupyter
from tests.browser.accessibility import violations_in_both_themes
from tests.browser.conftest import Visitor
from tests.browser.persons import PHONE, TOO_WIDE
from tests.platform import Platform, until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.timeout(420),
    pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs"),
]

JUPYTER = str(Path(sys.executable).parent / "jupyter")
# JupyterLab is large, and no test needs it but one: `jupyter` of an environment that has it.
LAB = os.environ.get("GPUCLOUD_TEST_JUPYTERLAB", JUPYTER)
HAS_LAB = pytest.mark.skipif(
    not Path(f"{LAB}-lab").exists(), reason="no JupyterLab: GPUCLOUD_TEST_JUPYTERLAB names no jupyter that has it"
)


@pytest.fixture
def tenant(platform: Platform) -> str:
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], what="the node to offer jobs")
    return platform.new_tenant(f"notebooks-{os.urandom(4).hex()}")


@pytest.fixture
def notebook(platform: Platform, tenant: str, request: Any) -> Iterator[dict[str, Any]]:
    """Start a notebook, and stop it at the end."""
    asked = {
        "tenant": tenant, "name": "lab", "kind": "notebook", "command": [JUPYTER], "core_request": 20,
        "memory_mib": 2048, "idle_minutes": 1, **getattr(request, "param", {}),
    }  # fmt: skip
    made = platform.granted("POST", "jobs/", asked)
    path = f"jobs/{made['uid']}/"
    until(lambda: platform.granted("GET", path)["state"] == "running", what="the notebook to run")
    yield made
    until(lambda: platform.call("POST", f"{path}stop/", {}).status < 500, what="the notebook to be stopped")


def open_notebook(page: Page, job: dict[str, Any]) -> Page:
    """Press "Open notebook" on the job's page; return the page of Jupyter, once that answers."""
    page.goto(f"/jobs/{job['uid']}/")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open notebook").click()
    inside = opened.value
    until(lambda: answers(inside), what="Jupyter to answer")
    return inside


def answers(page: Page) -> bool:
    """Return True once the page is Jupyter's: the server's own says that it is not ready, and asks again by itself."""
    page.wait_for_load_state()
    try:
        return bool(page.evaluate("fetch('/api/status').then(answer => answer.ok, () => false)"))
    except Error:  # the page was left meanwhile
        return False


def resize(page: Page, **values: str) -> None:
    """Change the share by the form on the notebook's page, and wait until it is in force."""
    for label, value in values.items():
        page.locator("#resize").get_by_label(label.replace("_", " "), exact=True).fill(value)
    page.locator("#resize").get_by_role("button", name="Apply").click()
    expect(page.locator("#change")).to_contain_text(re.compile(r"Applied"))


def test_a_notebook_is_resized_by_its_pages_form_while_a_cell_runs_and_ended_by_its_idle_rule(
    visitor: Visitor, platform: Platform, notebook: dict[str, Any]
) -> None:
    page = visitor.page
    inside = open_notebook(page, notebook)
    jupyter.start_cell(inside, jupyter.WATCH_MEMORY)
    until(lambda: "sees 2048 MiB" in jupyter.last_line(inside), what="the cell to see its memory")
    before = jupyter.facts(jupyter.last_line(inside))
    run = platform.granted("GET", f"jobs/{notebook['uid']}/")
    resize(page, Core_limit="60", Memory="4")
    until(lambda: "sees 4096 MiB" in jupyter.last_line(inside), what="the running cell to see the new memory")
    after = jupyter.facts(jupyter.last_line(inside))
    assert (after["pid"], after["turn"] > before["turn"]) == (before["pid"], True), "the cell went on"
    turns = [jupyter.facts(line)["turn"] for line in jupyter.printed(inside).split("\n")[:-1]]
    assert turns == list(range(len(turns))), "no line of the cell is lost"
    # Smaller, too.
    resize(page, Memory="1")
    until(lambda: "sees 1024 MiB" in jupyter.last_line(inside), what="the running cell to see less memory")
    now = platform.granted("GET", f"jobs/{notebook['uid']}/")
    assert [now[name] for name in ("runs", "started_at")] == [run[name] for name in ("runs", "started_at")]
    assert violations_in_both_themes(page) == []
    page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert page.evaluate(TOO_WIDE) == []
    # Its rule ends it when it is left, and its page says so before and after.
    jupyter.leave(inside)
    inside.close()
    expect(page.get_by_text("Nobody uses this notebook.")).to_be_visible(timeout=120_000)
    expect(page.locator("#living")).to_contain_text("not used for 1 minutes", timeout=180_000)
    expect(page.locator("#living [data-state]").first).to_have_text("Stopped", timeout=60_000)
    expect(page.get_by_role("link", name="Open notebook")).to_have_count(0)
    assert page.evaluate(TOO_WIDE) == []


@HAS_LAB
@pytest.mark.parametrize("notebook", [{"command": [LAB], "idle_minutes": 5}], indirect=True)
def test_jupyterlab_runs_a_cell_that_sees_the_new_share(visitor: Visitor, notebook: dict[str, Any]) -> None:
    page = visitor.page
    inside = open_notebook(page, notebook)
    complaints = list[str]()
    inside.on("pageerror", lambda error: complaints.append(str(error)))
    inside.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    cell = inside.locator(".jp-Notebook .jp-Cell .cm-content").first
    cell.click()
    inside.keyboard.insert_text(jupyter.WATCH_MEMORY)
    inside.keyboard.press("Shift+Enter")
    output = inside.locator(".jp-OutputArea-output").first
    expect(output).to_contain_text("sees 2048 MiB")
    page.bring_to_front()
    resize(page, Memory="4")
    inside.bring_to_front()
    expect(output).to_contain_text("sees 4096 MiB")
    assert not complaints
    inside.close()
