"""Offers of a page are not refused to its reader: links work, and actions that a role may not do are absent."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.utils import timezone

from apps.quotas.models import User
from tests.cast import Cast, Machine, ask, give, placed
from tests.pages.conftest import SignIn

LINK = re.compile(r'<a\b[^>]*?\bhref="([^"#]+)')
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Files, and responses that are not pages.
NO_PAGE = re.compile(r"^/(static|api)/|[?&;]as=|^//|^[a-z]+:")
# Offered to a tenant's admins.
ADMINS = {"/webhooks/", "/webhooks/UID/", "/new-webhook/", "/tokens/", "/new-token/"}
REFUSAL = "Your role does not allow this"


@pytest.fixture
def busy(cast: Cast, machine: Machine) -> None:
    """Create objects for every page: a running claim, a queued one, a request, a reservation."""
    give(cast.acme, vgpus=8)
    placed(cast, machine)
    ask(cast, name="waits", core_request=100, gpu_count=4)
    asked = {"tenant": "acme", "resource": "vgpus", "amount": 2, "reason": "exam"}
    assert cast.anna.post("quota-requests/", asked).status == 201
    booked = {"tenant": "acme", "name": "exam", "core_request": 20, "memory_mib": 1024}
    booked |= {
        f"{end}_at": (timezone.now() + timedelta(hours=at)).isoformat() for end, at in (("start", 1), ("end", 2))
    }
    assert cast.anna.post("reservations/", booked).status == 201
    limits = {"tenant": "acme", "resource": "vgpus", "hard": 2}
    assert cast.anna.post("member-limits/", limits).status == 201
    ranges = {"tenant": "acme", "field": "gpu_count", "maximum": 8}
    assert cast.olga.post("limit-ranges/", ranges).status == 201
    assert cast.olga.post("budgets/", {"tenant": "acme", "period": "month", "gpu_hours": "10"}).status == 201
    hook = {"tenant": "acme", "url": "https://hooks.example.org/secret", "events": ["claim.active"]}
    assert cast.anna.post("webhooks/", hook).status == 201


def _walk(sign_in: SignIn, name: str) -> dict[str, str]:
    """Follow links from the overview; return every page, one of a kind, by path; fail if one is refused."""
    client, todo, pages, kinds = sign_in(name), [("/", "")], dict[str, str](), set[str]()
    while todo:
        path, origin = todo.pop()
        kind = UID.sub("UID", path.split("?")[0])
        if kind in kinds:
            continue
        kinds.add(kind)
        answer = client.get(path)
        text = answer.content.decode()
        assert answer.status_code == 200, f"{origin} offers {name} {path}: {answer.status_code}"
        assert REFUSAL not in text, f"{origin} offers {name} {path}"
        pages[kind] = text
        links = (unescape(link) for link in LINK.findall(text))
        todo += [(link, path) for link in links if link.startswith("/") and not NO_PAGE.search(link)]
    return pages


@pytest.mark.parametrize("name", ["anna", "max", "vera", "una"])
def test_no_link_leads_to_a_refusal(busy: None, browser: SignIn, name: str) -> None:
    User.objects.get_or_create(username=name)
    pages = _walk(browser, name)
    assert {"/claims/", "/queue/", "/reservations/", "/requests/", "/tenants/", "/help/"} <= set(pages)
    assert ("/reservations/UID/" in pages) == (name != "una")
    assert ("/claims/new/" in pages) == (name in {"anna", "max"})
    assert ("/tenants/acme/limits/" in pages) == (name != "una")
    assert ("/tenants/acme/member-limits/new/" in pages) == (name == "anna")
    assert ADMINS & set(pages) == (ADMINS if name == "anna" else set())


@pytest.mark.parametrize(("name", "offered"), [("max", True), ("vera", False), ("una", False)])
def test_who_may_not_ask_is_told_no_way_to(cast: Cast, browser: SignIn, name: str, offered: bool) -> None:
    User.objects.get_or_create(username=name)
    reader = browser(name)
    for path in ("/", "/claims/", "/reservations/"):
        text = reader.get(path).content.decode()
        assert ('href="/claims/new/' in text or 'href="/reservations/new/' in text) == offered, path
        assert ("curl -H" in text or "gpucloud reservation create" in text) == offered, path


@pytest.mark.parametrize("name", ["max", "vera"])
def test_what_a_tenants_admins_do_is_offered_to_them_only(cast: Cast, browser: SignIn, name: str) -> None:
    ways = ("/new-token/", "/webhooks/")
    for way in ways:
        assert way in browser("anna").get("/tenants/acme/").content.decode()
        for headers in ({}, {"HX-Request": "true"}):
            assert way not in browser(name).get("/tenants/acme/", headers=headers).content.decode()
    assert "gpucloud token create" not in browser(name).get("/tenants/acme/").content.decode()
    asks = "gpucloud quota-request create" in browser(name).get("/requests/").content.decode()
    assert asks == (name == "max")


def test_lines_to_copy_are_for_who_may_use_them(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    pages = {name: browser(name).get(f"/claims/{claim.uid}/").content.decode() for name in ("anna", "max", "vera")}
    for command in ("gpucloud claim exec", "gpucloud-agent exec", '/account/">a personal token'):
        assert [name for name, page in pages.items() if command in page] == ["anna", "max"], command


def test_a_tenants_members_ask_for_more_from_the_quotas_page(cast: Cast, browser: SignIn) -> None:
    quotas = give(cast.acme, vgpus=8, gpus=None)
    way = "/requests/new/?tenant=acme&amp;resource=vgpus"
    pages = {name: browser(name).get(f"/quotas/{quotas['vgpus'].pk}/").content.decode() for name in ("max", "vera")}
    assert way in pages["max"]
    assert way not in pages["vera"]
    assert "/requests/new/" not in browser("anna").get(f"/quotas/{quotas['gpus'].pk}/").content.decode()
    form = browser("anna").get(unescape(way)).content.decode()
    assert re.search(r'<option value="vgpus"\s+selected', form)


@pytest.mark.parametrize("name", ["max", "vera"])
def test_a_claims_refresh_has_a_place_for_each_of_its_parts(
    cast: Cast, machine: Machine, browser: SignIn, name: str
) -> None:
    claim, _ = placed(cast, machine)
    reader, path = browser(name), f"/claims/{claim.uid}/"
    whole = reader.get(path).content.decode()
    again = reader.get(path, headers={"HX-Request": "true"}).content.decode()
    parts = re.findall(r'id="([^"]+)" hx-swap-oob', again)
    assert bool(parts) == (name == "max")
    assert all(f'id="{part}"' in whole for part in parts)
