"""Keyboard control of a page: focus an element by Tab, then Enter or text."""

from playwright.sync_api import Locator, Page, expect

# More stops than any page has before its content's end.
MOST_STOPS = 150


def reach(page: Page, target: Locator) -> None:
    """Press Tab until it has the focus."""
    target.wait_for()
    for _ in range(MOST_STOPS):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{target} is out of the keyboard's reach")


def press(page: Page, target: Locator) -> None:
    """Activate a button or a link by Enter."""
    reach(page, target)
    page.keyboard.press("Enter")


def write(page: Page, label: str, text: str) -> None:
    """Replace a field's text."""
    reach(page, page.get_by_label(label, exact=True))
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(text)


def choose(page: Page, label: str, option: str) -> None:
    """Choose from a list, by the option's first letters."""
    field = page.get_by_label(label, exact=True)
    reach(page, field)
    page.keyboard.type(option)
    expect(field).to_have_value(option)
