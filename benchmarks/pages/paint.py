"""Every page with a cold cache: when something is seen of it, what it weighs, and what it asks the database."""

import time
from pathlib import Path
from typing import Any

from benchmarks.pages.chrome import Chrome
from benchmarks.report import Row, quantile
from benchmarks.telemetry.stage import Stage

# What the browser itself noted, of everything that came before the page was loaded.
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


def asked(paths: list[str]) -> dict[str, tuple[int, float]]:
    """Of each page that there is: queries, and milliseconds in Django and the database, in this process."""
    from django.db import connection  # noqa: PLC0415 - models, once apps are loaded
    from django.test import Client  # noqa: PLC0415 - likewise
    from django.test.utils import CaptureQueriesContext  # noqa: PLC0415 - likewise

    from apps.quotas.models import User  # noqa: PLC0415 - likewise

    client = Client(headers={"host": "127.0.0.1"})
    client.force_login(User.objects.get(username="operator"))
    found = {}
    for path in paths:
        # What only takes posts, or is a part of another page.
        if client.get(path).status_code in {302, 405}:
            continue
        with CaptureQueriesContext(connection) as queries:
            begun = time.perf_counter()
            answer = client.get(path)
            seconds = time.perf_counter() - begun
        assert answer.status_code == 200, (path, answer.status_code)
        found[path] = len(queries), seconds * 1000
    return found


def painted(chrome: Chrome, ready: Stage, found: dict[str, tuple[int, float]], times: int) -> list[Row]:
    """A row for each page; what is text for scripts alone has no paint and is left out."""
    rows = []
    for path, (queries, milliseconds) in found.items():
        if path.endswith("/series/"):
            continue
        before = _ticks()
        seen = [_seen(chrome, ready, path) for _ in range(times)]
        paints = [one["paint"] for one in seen]
        rows.append(
            {
                "page": _kind(path), "first paint p50 ms": quantile(paints, 0.5), "max ms": max(paints),
                "answer p50 ms": quantile([one["answered"] for one in seen], 0.5),
                "page KiB": seen[0]["page"] / KIB, "in all KiB": max(one["all"] for one in seen) / KIB,
                "elements": seen[0]["elements"], "queries": queries, "Django ms": milliseconds,
                "stolen %": _stolen(before, _ticks()),
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _seen(chrome: Chrome, ready: Stage, path: str) -> dict[str, Any]:
    with chrome.page(ready) as page:
        page.goto(path, wait_until="load")
        seen: dict[str, Any] = page.evaluate(NOTED)
        return seen


def _ticks() -> tuple[int, int]:
    """Of all processors since the machine began: busy, of it taken by the host for others."""
    _, user, nice, system, _idle, _wait, interrupt, soft, steal, *_ = Path("/proc/stat").read_text().split(maxsplit=10)
    return sum(map(int, (user, nice, system, interrupt, soft, steal))), int(steal)


def _stolen(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Percent of the busy time that others had: a page waits for it as well, and is not to blame."""
    busy, stolen = (late - early for early, late in zip(before, after, strict=True))
    return 100 * stolen / busy if busy else 0.0


def _kind(path: str) -> str:
    """Without the uid of what it happens to show."""
    return "/".join("…" if len(part) > 20 else part for part in path.split("/"))
