"""The browser of the benchmark: headless Chromium, and the cost of its processes."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.telemetry.stage import Stage

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WINDOW = {"width": 1280, "height": 900}
SWITCHES = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--password-store=basic",
]  # fmt: skip


@dataclass(frozen=True)
class Chrome:
    """A running browser, and its top process."""

    browser: Browser
    pid: int

    @contextlib.contextmanager
    def page(self, ready: Stage) -> Iterator[Page]:
        """Open an operator's page, signed in, with an empty cache."""
        address = f"http://127.0.0.1:{ready.port}"
        context = self.browser.new_context(base_url=address, viewport=WINDOW)  # type: ignore[arg-type]
        context.add_cookies([{"name": "sessionid", "value": ready.filled.cookie, "url": address}])
        yield context.new_page()
        context.close()


@contextlib.contextmanager
def chrome() -> Iterator[Chrome]:
    """Start the browser, and close it at the end.

    Raises FileNotFoundError if the machine has none.
    """
    # An unknown switch changes nothing, and only the first process has it.
    mark = f"--of-benchmark={uuid.uuid4().hex}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path_of_chrome(), args=[*SWITCHES, mark])
        yield Chrome(browser, _marked(mark))
        browser.close()


def path_of_chrome() -> str:
    """Return the browser's path.

    Raises FileNotFoundError if the machine has none.
    """
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        raise FileNotFoundError(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    return path


def _marked(mark: str) -> int:
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (directory / "cmdline").read_bytes().split(b"\0") if directory.name.isdigit() else []
            if mark.encode() in words and not any(word.startswith(b"--type=") for word in words):
                return int(directory.name)
    raise FileNotFoundError("the browser's process is not there")
