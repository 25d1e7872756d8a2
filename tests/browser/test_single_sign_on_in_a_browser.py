"""Single sign-on in a browser: under our policy, over the provider's own page and back."""

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.accessibility import AXE
from tests.browser.conftest import Visitor
from tests.cast import make_cast
from tests.identity_provider import CLIENT_ID, CLIENT_SECRET, running
from tests.platform import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.filterwarnings("ignore:get_.* is deprecated:DeprecationWarning"),
]


def test_a_person_goes_to_the_provider_and_comes_back_signed_in(
    chrome: Browser, live_server: Any, settings: Any
) -> None:
    make_cast()
    with running() as provider:
        settings.OIDC_ISSUER = provider.issuer
        settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
        settings.OIDC_GROUP_ROLES = [("ml", "acme", "member")]
        provider.person("s-1", preferred_username="nora", groups=["ml"])
        context = chrome.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
        context.set_default_timeout(1000 * PATIENCE_SECONDS)
        visitor = Visitor(context.new_page())
        page = visitor.page
        page.goto("/claims/")
        page.evaluate(AXE)
        # Here sheets import each other, and axe would copy their text into the page: that is forbidden.
        asked = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'], preload: false}"
        found = page.evaluate(f"axe.run(document, {asked})")
        assert not found["violations"]
        page.get_by_role("link", name="Sign in with your organisation").click()
        page.get_by_placeholder("sub").fill("s-1")
        page.get_by_role("button", name="Authorize", exact=True).click()
        expect(page.get_by_role("heading", name="Claims", exact=True)).to_be_visible()
        assert page.url == f"{live_server.url}/claims/"
        # This server has no websockets; the page asks again by itself.
        found = [complaint for complaint in visitor.complaints if live_server.url in complaint]
        assert not [complaint for complaint in found if "WebSocket" not in complaint]
        context.close()
