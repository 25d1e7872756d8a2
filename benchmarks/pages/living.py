"""The overview, left open: what it costs the browser, and whether its memory stays as it is."""

import time

from benchmarks.api.cpu import seconds_below
from benchmarks.pages.chrome import Chrome
from benchmarks.report import Row
from benchmarks.telemetry.memory import mib_below
from benchmarks.telemetry.stage import Stage

# The page's own beginning is not what an hour of it is like.
SETTLE_SECONDS = 15.0
STEPS = 10


def living(chrome: Chrome, ready: Stage, minutes: float) -> list[Row]:
    """Ten rows over the time. CPU is of the browser with all its processes; the heap after a collection."""
    rows, step = [], max(10.0, 60 * minutes / STEPS)
    with chrome.page(ready) as page:
        page.goto("/", wait_until="load")
        page.locator("#live[data-mode=live]").wait_for()
        asked: list[float] = []
        page.on("request", lambda one: asked.append(time.monotonic()) if "hx-request" in one.headers else None)
        tools = page.context.new_cdp_session(page)
        tools.send("Performance.enable")
        page.wait_for_timeout(1000 * SETTLE_SECONDS)
        begun = time.monotonic()
        while time.monotonic() - begun < 60 * minutes:
            before, at = seconds_below(chrome.pid), time.monotonic()
            asked.clear()
            page.wait_for_timeout(1000 * step)
            spent, wall = seconds_below(chrome.pid) - before, time.monotonic() - at
            tools.send("HeapProfiler.collectGarbage")
            metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
            rows.append(
                {
                    "minute": (time.monotonic() - begun) / 60, "browser CPU %": 100 * spent / wall,
                    "refreshes a minute": 60 * len(asked) / wall,
                    "JavaScript heap MiB": metrics["JSHeapUsedSize"] / (1 << 20), "DOM nodes": metrics["Nodes"],
                    "listeners": metrics["JSEventListeners"], "browser MiB": mib_below(chrome.pid),
                    "mode": page.locator("#live").get_attribute("data-mode"),
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows
