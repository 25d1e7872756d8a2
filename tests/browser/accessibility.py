"""Findings of axe on a page: WCAG 2.2 A and AA, and its best practices."""

from pathlib import Path

from playwright.sync_api import Page, expect

AXE = (Path(__file__).parent / "vendor" / "axe-4.14.1.min.js").read_text()
# Rules whose answer depends on colours: all that another theme changes.
RULES_OF_COLOURS = ("color-contrast", "link-in-text-block")
# The findings alone: all else that axe says of thousands of elements would cost more on its way than the check.
RUN = """rules => axe.run({resultTypes: ['violations'], ...(rules.length ? {runOnly: rules} : {})})
    .then(found => found.violations)"""


def violations(page: Page, *rules: str) -> list[str]:
    """Return axe's findings, or those of these rules."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE)
    found = page.evaluate(RUN, list(rules))
    return [
        f"{item['id']}: {node['html'][:200]} {node['failureSummary'][:300]}" for item in found for node in item["nodes"]
    ]


def violations_in_both_themes(page: Page) -> list[str]:
    """Return axe's findings in the light and, on the same page, in the dark theme, which changes colours alone."""
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "light")
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-bs-theme", "dark")
    found += violations(page, *RULES_OF_COLOURS)
    page.emulate_media(color_scheme="light")
    return found
