"""Token pages: choosing rights, rotation, and history."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.console.access.tokens import RIGHTS
from apps.quotas.models import Membership, Tenant, Token, User
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import tokens
from tests.cast import Api, Cast
from tests.pages.conftest import SignIn

ASKED: dict[str, Any] = {"name": "ci", "tenant": "acme", "role": "member", "may": "choose", "days": "", "cidrs": ""}
TEXT = re.compile(r"gpc_[0-9a-f]+\.[\w-]+")


@pytest.fixture
def anna(browser: SignIn) -> Client:
    return browser("anna")


def page(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def made(tenant: Tenant | None, name: str = "ci", **facts: Any) -> tuple[Token, str]:
    return tokens.create(principal=SYSTEM, name=name, tenant=tenant, **facts)


def works(text: str) -> bool:
    return Api(text).get("me/").status == 200


def test_every_scope_can_be_chosen_once() -> None:
    assert sorted(scope for _, rights in RIGHTS for scope, _ in rights) == sorted(SCOPES)


def test_single_rights_are_chosen_and_are_all_that_it_may(cast: Cast, anna: Client) -> None:
    made = anna.post("/new-token/", {**ASKED, "scopes": ["claims:read", "audit:read"]}, follow=True)
    text = TEXT.findall(page(made))[0]
    assert sorted(Token.objects.get(name="ci").scopes) == ["audit:read", "claims:read"]
    assert (Api(text).get("claims/").status, Api(text).get("quotas/").status) == (200, 403)
    for scopes in ([], ["claims:eat"]):
        refused = anna.post("/new-token/", {**ASKED, "scopes": scopes})
        assert (refused.status_code, 'role="alert"' in page(refused)) == (422, True)
    # The choices below count only if rights are restricted.
    anna.post("/new-token/", {**ASKED, "name": "reader", "may": "read", "scopes": ["claims:write"]})
    assert "claims:write" not in Token.objects.get(name="reader").scopes


@pytest.mark.parametrize(("overlap", "stays"), [("3600", True), ("0", False), ("junk", True)])
def test_another_is_put_in_its_place_and_shown_once(cast: Cast, anna: Client, overlap: str, stays: bool) -> None:
    old, before = made(cast.acme, scopes=["claims:read"], cidrs=["127.0.0.0/8"])
    answer = anna.post(f"/tokens/{old.key}/rotate/", {"overlap": overlap, "version": old.version}, follow=True)
    assert (answer.status_code, "no-store" in answer["Cache-Control"]) == (200, True)
    (text,) = TEXT.findall(page(answer))
    assert works(text)
    assert works(before) == stays
    assert ("works until" if stays else "is refused from now on") in page(answer)
    new = Token.objects.exclude(pk=old.pk).get(name="ci")
    assert (new.scopes, new.cidrs, new.user) == (["claims:read"], ["127.0.0.0/8"], User.objects.get(username="anna"))
    assert text not in page(anna.get(f"/tokens/{new.key}/"))


def test_an_old_page_or_an_ended_token_brings_no_successor(cast: Cast, anna: Client) -> None:
    old, _ = made(cast.acme)
    late = anna.post(f"/tokens/{old.key}/rotate/", {"overlap": "0", "version": old.version + 1}, follow=True)
    assert "Somebody changed it while you had this page open" in page(late)
    tokens.revoke(principal=SYSTEM, token=old)
    old.refresh_from_db()
    ended = anna.post(f"/tokens/{old.key}/rotate/", {"overlap": "0", "version": old.version}, follow=True)
    assert "The token has ended" in page(ended)
    assert "Replace…" not in page(ended)
    assert Token.objects.filter(name="ci").count() == 1


def test_those_that_have_ended_are_listed_apart_and_why(cast: Cast, anna: Client) -> None:
    now = timezone.now()
    made(cast.acme, "fresh")
    made(cast.acme, "soon", expires_at=now + timedelta(days=2))
    late, _ = made(cast.acme, "late", expires_at=now + timedelta(days=2))
    Token.objects.filter(pk=late.pk).update(expires_at=now - timedelta(days=1))
    tokens.revoke(principal=SYSTEM, token=made(cast.acme, "gone")[0])
    made(cast.acme, "orphan", user=User.objects.get(username="max"))
    Membership.objects.filter(user__username="max").delete()
    made(cast.globex, "theirs")

    def states(query: str) -> dict[str, str]:
        rows = json.loads(anna.get(f"/tokens/?format=json{query}").content)
        return {row["name"]: row["standing"] for row in rows if row["name"] in NAMES}

    assert states("") == NAMES
    assert states("&state=ended") == {"late": "expired", "gone": "revoked"}
    assert set(states("&state=alive&tenant=acme")) == {"fresh", "soon", "orphan"}
    listed = page(anna.get("/tokens/?state=ended"))
    assert "late" in listed
    assert "orphan" not in listed
    own = page(anna.get("/tenants/acme/"))
    assert (">soon</a>" in own, ">late</a>" in own, ">gone</a>" in own) == (True, False, False)


NAMES = {"fresh": "works", "soon": "ends-soon", "late": "expired", "gone": "revoked", "orphan": "maker-left"}


def test_a_tokens_page_is_for_who_may_see_it_and_offers_what_they_may(cast: Cast, browser: SignIn) -> None:
    token, _ = made(cast.acme, user=User.objects.get(username="max"), scopes=["claims:read"])
    paths = {"": "get", "rotate/": "post", "revoke/": "post"}
    gus, max_ = browser("gus"), browser("max")
    for path, method in paths.items():
        assert getattr(gus, method)(f"/tokens/{token.key}/{path}").status_code == 404, path
    shown = page(max_.get(f"/tokens/{token.key}/"))
    assert "claims:read" in shown
    assert "claims:write" not in shown
    assert "Replace…" not in shown
    assert max_.post(f"/tokens/{token.key}/rotate/", {"version": token.version}).status_code == 403
    assert max_.post(f"/tokens/{token.key}/revoke/").status_code == 403
    assert max_.get("/tokens/").status_code == 403
    platform, _ = made(None, "service")
    assert browser("anna").get(f"/tokens/{platform.key}/").status_code == 404
    assert "Replace…" in page(browser("olga").get(f"/tokens/{platform.key}/"))
