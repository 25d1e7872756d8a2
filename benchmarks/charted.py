"""`make bench-chart`: the time from clicking Apply on a claim's page to the step in its chart.

The whole platform runs as `make demo` starts it; a GPU program runs under a claim, whose page is open in headless
Chromium. Its limit is moved up and down in the form. By the page's own clock: when the chart's legend shows the new
limit, and when it shows the program's use of it, to a tenth.
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.report import Row, print_report, spread_ms
from tests.conftest import chromium
from tests.platform import ROOT, Platform

GPULOAD = ROOT / "libvcuda" / "build" / "gpuload"
LIMITS = (75, 25)
# Separate the steps: the burst of frames after a change must be over.
PAUSE_MS = 2500
STEP = """limit => new Promise(done => {
    const field = document.querySelector("#resize [name=core_limit]");
    const chart = document.querySelector("[data-chart=core]");
    const value = line => parseFloat(chart.querySelector(`.legend-item:has(.colour-${line}) b`)?.textContent);
    const begun = performance.now(), seen = {};
    const look = () => {
        const now = performance.now() - begun;
        if (value("limit") === limit) seen.limit ??= now;
        if (Math.abs(value("used") - limit) <= 0.1 * limit) seen.use ??= now;
        if ((seen.limit && seen.use) || now > 20000) done([seen.limit, seen.use]); else requestAnimationFrame(look);
    };
    field.value = limit;
    document.getElementById("resize-apply").click();
    look();
})"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-chart", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--resizes", type=int, default=40, help="how many (40)")
    count = parser.parse_args().resizes
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        with Platform(Path(directory) / "demo") as platform:
            page = browser.new_page(base_url=platform.url)
            print_report("chart", measure(platform, page, Path(directory), count))
        browser.close()


def measure(platform: Platform, page: Page, directory: Path, count: int) -> list[Row]:
    """Return rows of milliseconds: until the chart shows the limit, and until it shows the use."""
    platform.new_tenant("bench")
    body = {"tenant": "bench", "name": "charted", "core_request": 25, "memory_mib": 4096}
    uid = platform.granted("POST", "claims/?wait=30", body)["uid"]
    program = platform.run(uid, str(GPULOAD), "--memory", "1GiB", "--kernel-us", "500", log=directory / "program.log")
    try:
        page.goto(f"/sign-in/?next=/claims/{uid}/")
        page.get_by_label("Name", exact=True).fill("operator")
        page.get_by_label("Password", exact=True).fill((platform.state / "operator.password").read_text().strip())
        page.get_by_role("button", name="Sign in").click()
        page.locator("#live[data-mode=live]").wait_for()
        times = [_step(page, LIMITS[number % len(LIMITS)]) for number in range(count)]
    finally:
        program.terminate()
        program.wait(20)
    return [
        {"Apply to the chart's": name, "resizes": len(times), **spread_ms([pair[at] for pair in times])}
        for at, name in enumerate(("the limit", "the use, to a tenth"))
    ]


def _step(page: Page, limit: int) -> tuple[float, float]:
    page.wait_for_timeout(PAUSE_MS)
    of_limit, of_use = page.evaluate(STEP, limit)
    # A value that did not come in time counts as the whole wait.
    return of_limit or 20_000.0, of_use or 20_000.0


if __name__ == "__main__":
    main()
