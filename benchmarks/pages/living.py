"""The overview left open: its cost to the browser, and the growth of its memory.

No driver controls the browser meanwhile: a driver makes it keep what the page receives, and leaves objects in the page.
After each step its figures are read over its own protocol.
"""

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from websockets.sync.client import connect

from benchmarks.api.cpu import seconds_below
from benchmarks.pages.chrome import SWITCHES, WINDOW, path_of_chrome
from benchmarks.report import Row
from benchmarks.telemetry.memory import mib_below
from benchmarks.telemetry.stage import Stage

# The first seconds of a page are not representative.
SETTLE_SECONDS = 15.0
STEPS = 10
COUNTED = """(() => {
    if (window.refreshes === undefined) {
        window.refreshes = 0;
        document.body.addEventListener("htmx:afterSwap", () => { window.refreshes += 1; });
    }
    return window.refreshes;
})()"""


def measure_overview(ready: Stage, minutes: float) -> list[Row]:
    """Return ten rows over the time. CPU is of all processes of the browser; the heap is measured after a collection.

    `refreshes`: of the live fragment, a minute.
    """
    rows: list[Row] = []
    with separate_browser(ready) as (pid, debugging):
        time.sleep(SETTLE_SECONDS)
        before = inspect_page(debugging)
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < 60 * minutes:
            spent, at = seconds_below(pid), time.monotonic()
            time.sleep(min(max(10.0, 60 * minutes / STEPS), 60 * minutes - passed + 1))
            cpu, resident = 100 * (seconds_below(pid) - spent) / (time.monotonic() - at), mib_below(pid)
            found = inspect_page(debugging)
            minutes_passed, wall = (time.monotonic() - begun) / 60, time.monotonic() - at
            row = {"minute": minutes_passed, "browser CPU %": cpu, "browser MiB": resident, **found}
            rows.append(row | {"refreshes": round(60 * (found["refreshes"] - before["refreshes"]) / wall)})
            print(rows[-1], flush=True)
            before = found
    return rows


@contextlib.contextmanager
def separate_browser(ready: Stage) -> Iterator[tuple[int, str]]:
    """Run a separate browser with an operator's overview open; yield its pid and its debugging address."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as profile:
        address, path = f"http://127.0.0.1:{ready.port}", path_of_chrome()
        kept: Any = {"name": "sessionid", "value": ready.filled.cookie, "url": address, "expires": time.time() + 86_400}
        with sync_playwright() as playwright:
            context = playwright.chromium.launch_persistent_context(profile, executable_path=path, args=SWITCHES)
            context.add_cookies([kept])
            context.close()
        port, size = Path(profile) / "DevToolsActivePort", f"--window-size={WINDOW['width']},{WINDOW['height']}"
        port.unlink(missing_ok=True)
        command = [path, "--headless=new", *SWITCHES, size, f"--user-data-dir={profile}", "--remote-debugging-port=0"]
        with subprocess.Popen([*command, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
            try:
                while not (port.exists() and port.read_text().strip()):
                    assert browser.poll() is None, "the browser ended"
                    time.sleep(0.1)
                yield browser.pid, f"http://127.0.0.1:{port.read_text().split()[0]}"
            finally:
                browser.terminate()


def inspect_page(debugging: str) -> Row:
    """Return the heap of the open page after a collection, and its refreshes since the first call."""
    with urllib.request.urlopen(f"{debugging}/json") as answer:  # noqa: S310 - the browser's own address
        [page] = [one for one in json.load(answer) if one["type"] == "page"]
    with connect(page["webSocketDebuggerUrl"], max_size=None) as tools:

        def ask(method: str, **asked: Any) -> Any:
            tools.send(json.dumps({"id": 1, "method": method, "params": asked}))
            while "id" not in (said := json.loads(tools.recv(30))):
                pass
            return said["result"]

        def value(expression: str) -> Any:
            return ask("Runtime.evaluate", expression=expression)["result"]["value"]

        refreshes, mode = value(COUNTED), value("document.getElementById('live').dataset.mode")
        ask("HeapProfiler.collectGarbage")
        ask("Performance.enable")
        metrics = {one["name"]: one["value"] for one in ask("Performance.getMetrics")["metrics"]}
    return {
        "refreshes": refreshes, "JavaScript heap MiB": metrics["JSHeapUsedSize"] / (1 << 20),
        "DOM nodes": metrics["Nodes"], "listeners": metrics["JSEventListeners"], "mode": mode,
    }  # fmt: skip
