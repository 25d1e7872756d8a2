"""Every page with a cold cache: time to first paint, weight, and database queries."""

import time
from pathlib import Path
from typing import Any

from benchmarks.pages.chrome import Chrome
from benchmarks.report import Row, quantile
from benchmarks.telemetry.stage import Stage

# Timings of the browser for every resource before the load event.
NOTED = """async () => {
    const first = () => performance.getEntriesByName("first-contentful-paint")[0];
    while (!first()) await new Promise(requestAnimationFrame);
    const [page] = performance.getEntriesByType("navigation");
    const files = performance.getEntriesByType("resource").filter(one => one.startTime < page.loadEventEnd
        && !["fetch", "xmlhttprequest"].includes(one.initiatorType));
    return {
        paint: first().startTime, answered: page.responseStart - page.requestStart, loaded: page.loadEventEnd,
        page: page.encodedBodySize, all: files.reduce((sum, one) => sum + one.encodedBodySize, page.encodedBodySize),
        elements: document.querySelectorAll("*").length,
    };
}"""
KIB = 1024


def query_costs(paths: list[str]) -> dict[str, tuple[int, float]]:
    """Return queries and milliseconds in Django and the database of each page, in this process."""
    from django.db import connection  # noqa: PLC0415 - models, once apps are loaded
    from django.test import Client  # noqa: PLC0415 - likewise
    from django.test.utils import CaptureQueriesContext  # noqa: PLC0415 - likewise

    from apps.quotas.models import User  # noqa: PLC0415 - likewise

    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(User.objects.get(username="operator"))
    found = {}
    for path in paths:
        # Addresses that take posts only, are fragments of another page, or are off here (a reset needs a mail server).
        if client.get(path).status_code in {302, 404, 405}:
            continue
        with CaptureQueriesContext(connection) as queries:
            begun = time.perf_counter()
            answer = client.get(path)
            seconds = time.perf_counter() - begun
        assert answer.status_code == 200, (path, answer.status_code)
        found[path] = len(queries), seconds * 1000
    return found


def paint_rows(chrome: Chrome, ready: Stage, found: dict[str, tuple[int, float]], times: int) -> list[Row]:
    """Return a row for each page; responses for scripts have no paint and are left out."""
    rows = []
    for path, (queries, milliseconds) in found.items():
        if path.endswith("/series/"):
            continue
        before = _ticks()
        seen = [_measure(chrome, ready, path) for _ in range(times)]
        paints = [one["paint"] for one in seen]
        rows.append(
            {
                "page": _kind(path), "first paint p50 ms": quantile(paints, 0.5), "max ms": max(paints),
                "answer p50 ms": quantile([one["answered"] for one in seen], 0.5),
                "page KiB": seen[0]["page"] / KIB, "in all KiB": max(one["all"] for one in seen) / KIB,
                "elements": seen[0]["elements"], "queries": queries, "Django ms": milliseconds,
                "stolen %": _steal_percent(before, _ticks()),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _measure(chrome: Chrome, ready: Stage, path: str) -> dict[str, Any]:
    with chrome.page(ready) as page:
        page.goto(path, wait_until="load")
        seen: dict[str, Any] = page.evaluate(NOTED)
        return seen


def _ticks() -> tuple[int, int]:
    """Return the ticks of all processors since boot: busy, and stolen by the host."""
    _, user, nice, system, _idle, _wait, interrupt, soft, steal, *_ = Path("/proc/stat").read_text().split(maxsplit=10)
    return sum(map(int, (user, nice, system, interrupt, soft, steal))), int(steal)


def _steal_percent(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the percentage of busy time that the host stole: a page waits for it, and it is not the page's cost."""
    busy, stolen = (late - early for early, late in zip(before, after, strict=True))
    return 100 * stolen / busy if busy else 0.0


def _kind(path: str) -> str:
    """Return the page's name without the uid of the object that it shows."""
    return "/".join("…" if len(part) > 20 else part for part in path.split("/"))
