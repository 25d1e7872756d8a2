"""A real browser and a real platform; the browser's errors fail a test."""

from collections.abc import Iterator
from http import HTTPStatus

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.platform import PATIENCE_SECONDS, Platform

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Django's name for the cookie of a session.
SESSION = "sessionid"

expect.set_options(timeout=1000 * PATIENCE_SECONDS)


class Visitor:
    """The operator at a page, and the browser's errors and policy violations."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{self.page.url}: {message.text}")

    def enter(self, platform: Platform) -> None:
        """Sign in if the session of an earlier visit has ended: asked without a page, which the browser would draw."""
        if self.page.context.request.get("/account/", max_redirects=0).status != HTTPStatus.OK:
            self.sign_in(platform)

    def sign_in(self, platform: Platform) -> None:
        """Sign in through the form, as people do."""
        self.page.goto("/sign-in/")
        self.page.get_by_label("Name", exact=True).fill("operator")
        self.page.get_by_label("Password", exact=True).fill((platform.state / "operator.password").read_text().strip())
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("heading", name="Overview").wait_for()


@pytest.fixture(scope="package")
def chrome(chromium_path: str) -> Iterator[Browser]:
    """Start a headless browser for the folder; its end closes the loop that would disturb others."""
    # Its driver runs an event loop in this thread, which Django would take for an asynchronous caller.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        browser = playwright.chromium.launch(executable_path=chromium_path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def sessions() -> dict[str, str]:
    """Return each platform's last session: the form and the password's hash take seconds each time."""
    return {}


@pytest.fixture
def visitor(chrome: Browser, platform: Platform, sessions: dict[str, str]) -> Iterator[Visitor]:
    """Return a signed-in visitor who has no page open yet; check at the end that there were no errors."""
    context = chrome.new_context(base_url=platform.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    if session := sessions.get(platform.url):
        context.add_cookies([{"name": SESSION, "value": session, "url": platform.url}])
    visitor = Visitor(context.new_page())
    visitor.enter(platform)
    sessions[platform.url] = next(one["value"] for one in context.cookies() if one["name"] == SESSION)
    yield visitor
    context.close()
    assert not visitor.complaints
