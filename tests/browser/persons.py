"""A person at a browser of their own: every press is counted by the page, every page is checked in both themes."""

import time
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Browser, expect

from tests.browser.accessibility import violations_in_both_themes
from tests.browser.conftest import Visitor
from tests.platform import PATIENCE_SECONDS, Platform

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PASSWORD = "correct horse battery"
# The page counts pointers and not calls of the test: a press that opens a list or a dialog is one, too.
COUNT_PRESSES = """addEventListener('pointerdown', () =>
    localStorage.setItem('presses', 1 + Number(localStorage.getItem('presses'))), true)"""
# What reaches beyond the window's right edge, if the page can be scrolled there.
TOO_WIDE = """document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('body *')]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1).map(one => `${one.tagName}.${one.className}`)"""


class Person(Visitor):
    """One of the people who use the platform. Use as a context manager: complaints of the browser fail the test."""

    def __init__(self, chrome: Browser, platform: Platform, *, most_clicks: int, phone: bool = False) -> None:
        size: Any = PHONE if phone else DESKTOP
        self._context = chrome.new_context(base_url=platform.url, viewport=size, reduced_motion="reduce")
        self._context.set_default_timeout(1000 * PATIENCE_SECONDS)
        self._context.add_init_script(COUNT_PRESSES)
        super().__init__(self._context.new_page())
        self._most_clicks, self.fields = most_clicks, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        presses = 0 if kind else self.presses
        self._context.close()
        if kind is None:
            assert not self.complaints
            assert presses <= self._most_clicks, f"{presses} clicks, {self._most_clicks} wanted"
            assert presses, "the page counts"

    @property
    def presses(self) -> int:
        """Return the number of clicks and taps so far; 0 before the first page."""
        if self.page.url == "about:blank":
            return 0
        return int(self.page.evaluate("Number(localStorage.getItem('presses'))"))

    def click(self, role: Any, name: str, *, exact: bool = True) -> None:
        """Press the first control of this name."""
        self.page.get_by_role(role, name=name, exact=exact).first.click()

    def fill(self, **values: str) -> None:
        """Type into fields, by their labels; underscores are spaces, and lists are chosen from."""
        for label, value in values.items():
            self.fields += 1
            field = self.page.get_by_label(label.replace("_", " "), exact=True)
            if field.evaluate("one => one.tagName") == "SELECT":
                field.select_option(value)
            else:
                field.fill(value)

    def choose_file(self, label: str, path: Path) -> None:
        """Press a field for files, and choose one in the browser's own window."""
        with self.page.expect_file_chooser() as asked:
            self.page.get_by_label(label, exact=True).click()
        self.fields += 1
        asked.value.set_files(path)

    def sign_in_as(self, name: str, password: str) -> None:
        """Sign in through the form."""
        self.page.goto("/sign-in/")
        self.fill(Name=name, Password=password)
        self.click("button", "Sign in")
        self.see_heading("Overview")

    def accept(self, link: str) -> None:
        """Open an invitation and choose a password."""
        self.page.goto(link)
        self.fill(Password=PASSWORD, Password_again=PASSWORD)
        self.click("button", "Create account")
        self.see_heading("Overview")

    def see_heading(self, name: str) -> None:
        """Wait for a page's heading."""
        expect(self.page.get_by_role("heading", name=name, exact=True).first).to_be_visible()

    def see(self, text: str) -> None:
        """Wait for a text in the page's contents."""
        expect(self.page.locator("#main")).to_contain_text(text)

    def check_page(self) -> None:
        """Check the page that is open: accessible in both themes, no wider than its window."""
        assert not (found := violations_in_both_themes(self.page)), f"{self.page.url}: {found}"
        # Charts are drawn anew after the theme has changed.
        deadline = time.monotonic() + 10
        while wide := self.page.evaluate(TOO_WIDE):
            assert time.monotonic() < deadline, f"wider than the window: {self.page.url} {wide}"
            time.sleep(0.1)


def invite(platform: Platform, tenant: str, role: str, name: str) -> str:
    """Invite a person by REST; return the link."""
    asked = {"username": name, "tenant": tenant, "role": role}
    return str(platform.granted("POST", "invitations/", asked)["link"])
