"""Tokens that are rotated while pipelines use them, and a SECRET_KEY that is rotated while tokens exist."""

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent, Token, User
from tests.cast import Api, Cast, Machine, token_for

NEW_KEY = "another-key-for-tests-0123456789abcdef0123456789abcdef0123456789"
CI: dict[str, Any] = {"name": "ci", "tenant": "acme", "scopes": ["claims:read"], "cidrs": ["127.0.0.0/8"]}


def works(text: str) -> bool:
    return Api(text).get("me/").status == 200


@pytest.fixture
def ci(cast: Cast) -> dict[str, Any]:
    made: dict[str, Any] = cast.anna.post("tokens/", CI).body
    return made


def test_a_successor_is_like_the_old_one_and_both_work_during_the_overlap(cast: Cast, ci: dict[str, Any]) -> None:
    answer = cast.anna.post(f"tokens/{ci['key']}/rotate/", {"overlap_seconds": 3600})
    assert answer.status == 201
    assert answer.headers["Cache-Control"] == "no-store"
    new = answer.body
    assert new["key"] != ci["key"]
    assert {name: new[name] for name in CI} == CI
    assert new["expires_at"] is None
    assert works(ci["token"])
    assert works(new["token"])
    Token.objects.filter(key=ci["key"]).update(expires_at=timezone.now())
    assert not works(ci["token"])
    assert works(new["token"])


def test_without_an_overlap_the_old_one_ends_at_once(cast: Cast, ci: dict[str, Any]) -> None:
    new = cast.anna.post(f"tokens/{ci['key']}/rotate/", {"overlap_seconds": 0}).body
    assert not works(ci["token"])
    assert works(new["token"])


def test_a_successor_lives_no_longer_and_the_overlap_moves_no_end_out(cast: Cast) -> None:
    end = timezone.now() + timedelta(hours=1)
    made = cast.anna.post("tokens/", {**CI, "expires_at": end.isoformat()}).body
    new = cast.anna.post(f"tokens/{made['key']}/rotate/", {"overlap_seconds": 86400}).body
    assert new["expires_at"] == made["expires_at"]
    assert Token.objects.get(key=made["key"]).expires_at == end


def test_a_token_that_has_ended_is_not_followed_by_another(cast: Cast, ci: dict[str, Any]) -> None:
    cast.anna.delete(f"tokens/{ci['key']}/")
    answer = cast.anna.post(f"tokens/{ci['key']}/rotate/")
    assert (answer.status, answer.code) == (409, "token-ended")


def test_rotating_needs_what_making_needs(cast: Cast, ci: dict[str, Any]) -> None:
    path = f"tokens/{ci['key']}/rotate/"
    own = cast.max.get("tokens/").body["results"][0]["key"]
    assert cast.max.post(f"tokens/{own}/rotate/").code == "role-missing"
    assert cast.gus.post(path).code == "not-found"
    narrow = Api(token_for(cast.acme, "admin", scopes=["tokens:write"]))
    assert narrow.post(path).body["scope"] == "claims:read"
    limited = Api(token_for(cast.acme, "admin", expires_at=timezone.now() + timedelta(hours=1)))
    assert limited.post(path).code == "token-limited"
    assert works(ci["token"])
    assert Token.objects.get(key=ci["key"]).expires_at is None


def test_the_successor_speaks_for_who_asked_for_it(cast: Cast) -> None:
    """Otherwise an admin could get a token that acts for somebody else."""
    key = cast.max.get("tokens/").body["results"][0]["key"]
    new = cast.anna.post(f"tokens/{key}/rotate/").body["key"]
    assert Token.objects.get(key=new).user == User.objects.get(username="anna")


def test_both_halves_are_in_the_audit_log(cast: Cast, ci: dict[str, Any]) -> None:
    new = cast.anna.post(f"tokens/{ci['key']}/rotate/").body["key"]
    assert AuditEvent.objects.filter(action="token.create", object_id=new).exists()
    after = AuditEvent.objects.get(action="token.rotate", object_id=ci["key"]).after
    assert after is not None
    assert after["replaced_by"] == new


def test_tokens_outlive_a_new_secret_key_while_the_old_one_is_a_fallback(cast: Cast, settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW_KEY, [settings.SECRET_KEY]
    assert cast.max.get("me/").status == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert cast.max.get("me/").status == 200, "used once under the new key, it no longer needs the old one"
    assert cast.vera.get("me/").status == 401, "never used, it does"


def test_a_new_secret_key_alone_ends_all_tokens(cast: Cast, settings: Any) -> None:
    settings.SECRET_KEY = NEW_KEY
    assert cast.max.get("me/").status == 401


def test_agents_and_enrolments_outlive_a_new_secret_key_too(cast: Cast, settings: Any) -> None:
    machine = Machine("gpu1", cast.pool)
    key_digest = hashlib.sha256(b"secret").hexdigest()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW_KEY, [settings.SECRET_KEY]
    nodes.enrol(token=machine.enrolment, key_digest=key_digest)
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW_KEY[::-1], [NEW_KEY]
    credential = f"gpn_{machine.node.uid}.secret"
    assert nodes.authenticate(credential=credential) == machine.node
    settings.SECRET_KEY_FALLBACKS = []
    assert nodes.authenticate(credential=credential) == machine.node
    Node.objects.update(key_digest="0" * 64)
    assert nodes.authenticate(credential=credential) is None


def test_a_session_outlives_a_new_secret_key_while_the_old_one_is_a_fallback(cast: Cast, settings: Any) -> None:
    browser = Client()
    browser.force_login(User.objects.get(username="anna"))
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW_KEY, [settings.SECRET_KEY]
    assert browser.get("/").status_code == 200
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW_KEY[::-1], []
    assert browser.get("/").status_code == 302
