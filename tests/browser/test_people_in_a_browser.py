"""A person without single sign-on: invited, signed in, with a personal token, and deactivated."""

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visitor
from tests.platform import PATIENCE_SECONDS, Platform

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]

PASSWORD = "correct horse battery"


def test_a_person_is_invited_signs_in_and_makes_a_token(visitor: Visitor, chrome: Browser, platform: Platform) -> None:
    platform.new_tenant("browser-people")
    page = visitor.page
    page.goto("/users/")
    page.get_by_role("link", name="Invite user").click()
    page.get_by_label("Name", exact=True).fill("ida")
    page.get_by_label("Tenant", exact=True).select_option("browser-people")
    page.get_by_role("button", name="Create invitation").click()
    link = page.locator("#once").inner_text().strip()

    context = chrome.new_context(base_url=platform.url, viewport={"width": 390, "height": 844})
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    ida = context.new_page()
    ida.goto(link)
    expect(ida.get_by_text("You are invited to browser-people, as member.")).to_be_visible()
    expect(ida.get_by_label("Name", exact=True)).to_have_value("ida")
    ida.get_by_label("Password", exact=True).fill(PASSWORD)
    ida.get_by_label("Password again", exact=True).fill(PASSWORD)
    ida.get_by_role("button", name="Create account").click()
    expect(ida.get_by_role("heading", name="Overview")).to_be_visible()

    ida.goto("/account/")
    ida.get_by_role("link", name="New personal token").click()
    ida.get_by_label("Name", exact=True).fill("laptop")
    ida.get_by_role("button", name="Create token").click()
    expect(ida.locator("#once")).to_contain_text("gpc_")

    page.goto("/users/?q=ida")
    page.get_by_role("link", name="ida", exact=True).click()
    page.get_by_role("button", name="Deactivate…").click()
    page.get_by_role("button", name="Deactivate", exact=True).click()
    expect(page.get_by_text("ida is deactivated")).to_be_visible()
    ida.goto("/account/")
    expect(ida.get_by_role("button", name="Sign in")).to_be_visible()
    ida.goto(link)
    expect(ida.get_by_role("heading", name="This link does not work")).to_be_visible()
    context.close()
