"""``make screenshots``: docs/screenshots.md and its pictures, of a demo that is started for them and ended afterwards.

Each page in both themes at two widths, as WebP from Chromium's own encoder. The demo's programs run, so the charts
show real use; pictures taken twice differ accordingly.
"""

import base64
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from tests.conftest import chromium
from tests.gallery.scenes import Scene, largest, scenes
from tests.platform import READY_SECONDS, ROOT, Platform

DOCS = ROOT / "docs"
OUT = DOCS / "screenshots"
# A phone, a desk.
WIDTHS = {390: 844, 1440: 900}
THEMES: Any = ("light", "dark")
QUALITY = 38
# A longer picture adds nothing.
TALLEST = 1300
# Time for charts to fill, before and after a limit is moved.
WAIT_SECONDS = 30.0
ON_A_PHONE = (("overview", "light"), ("claim", "dark"), ("requests", "light"), ("audit", "dark"))


def main() -> int:
    path = chromium()
    if path is None:
        print("no browser: no chromium is on the PATH", file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-gallery-") as directory,
        sync_playwright() as playwright,
        Platform(Path(directory) / "demo", programs=True) as platform,
    ):
        print(f"a demo runs; pictures in {2 * WAIT_SECONDS:.0f} s", flush=True)
        shown = scenes(platform)
        (DOCS / "screenshots.md").write_text(page_of(shown))
        move_a_limit(platform)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        total = sum(pictures(open_page(browser, platform), shown))
        browser.close()
    print(f"{total / 1e6:.1f} MB in {OUT.relative_to(ROOT)}")
    return 0


def move_a_limit(platform: Platform) -> None:
    """Resize a claim in the middle of the charts' time."""
    time.sleep(WAIT_SECONDS)
    claim = largest(platform)
    platform.granted("PATCH", f"claims/{claim['uid']}/", {"core_limit": claim["core_limit"] - 15})
    time.sleep(WAIT_SECONDS)


def page_of(shown: list[Scene]) -> str:
    """Return the documentation page with the pictures."""
    widths = ", ".join(map(str, WIDTHS))
    rows = "\n".join(f"| **{one.name.capitalize()}.** {one.words} | {picture(one)} |" for one in shown)
    phones = "\n".join(
        f'  <img src="screenshots/{name}-{theme}-390.webp" width="220" alt="The page {name} on a phone, {theme}">'
        for name, theme in ON_A_PHONE
    )
    return f"""# Screenshots of the web console

After reading this page you can recognise each page of the console. `make screenshots` takes these pictures and writes
this page, from a demo that it starts: simulated GPUs, with real programs under real limits. Each page exists in both
themes and at the widths {widths}: `docs/screenshots/NAME-light-1440.webp` and so on.

| | |
| --- | --- |
{rows}

On a phone:

<p>
{phones}
</p>
"""


def picture(one: Scene) -> str:
    """Return a picture element for the reader's own theme."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="screenshots/{one.name}-dark-1440.webp">'
    light = f'<img src="screenshots/{one.name}-light-1440.webp" width="600" alt="The page {one.name}">'
    return f"<picture>{dark}{light}</picture>"


def open_page(browser: Browser, platform: Platform) -> Page:
    """Open an operator's page."""
    page = browser.new_page(base_url=platform.url)
    # The machine may run others.
    page.set_default_timeout(1000 * READY_SECONDS)
    page.goto("/sign-in/")
    page.get_by_label("Name", exact=True).fill("operator")
    page.get_by_label("Password", exact=True).fill((platform.state / "operator.password").read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page


def pictures(page: Page, shown: list[Scene]) -> Iterator[int]:
    """Take the pictures of each page as bytes.

    A page is opened once: theme and width change while it is shown, as they do for people.
    """
    tools = page.context.new_cdp_session(page)
    # The claim first: its chart shows five minutes, and a limit was moved in the last of them.
    for one in sorted(shown, key=lambda one: one.name != "claim"):
        page.set_viewport_size({"width": min(WIDTHS), "height": WIDTHS[min(WIDTHS)]})
        page.goto(one.path)
        # The first telemetry after the page has loaded.
        page.wait_for_timeout(1500)
        for width, height in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": height})
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                # Charts are redrawn.
                page.wait_for_timeout(400)
                taken = screenshot(page, tools, width)
                (OUT / f"{one.name}-{theme}-{width}.webp").write_bytes(taken)
                yield len(taken)
        print(one.name, flush=True)


def screenshot(page: Page, tools: CDPSession, width: int) -> bytes:
    """Return a screenshot of the page from its top."""
    height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    return base64.b64decode(tools.send("Page.captureScreenshot", asked)["data"])


if __name__ == "__main__":
    sys.exit(main())
