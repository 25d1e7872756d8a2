"""Sign-on at a real OpenID provider on loopback: discovery, redirects, signed tokens; and all refusals."""

import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from django.test import Client
from joserfc.jwk import OctKey, RSAKey

from apps.quotas import openid
from apps.quotas.models import AuditEvent, Identity, User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import attempts, tenants
from gpucloud.logs import OneLine
from gpucloud.web.sessions import BEGUN
from tests.cast import Cast
from tests.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, inside, query_of, running

pytestmark = pytest.mark.filterwarnings("ignore:get_.* is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[IdentityProvider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(server: IdentityProvider, settings: Any) -> IdentityProvider:
    """Configure the provider, with one person."""
    settings.OIDC_ISSUER = server.issuer
    settings.OIDC_CLIENT_ID = CLIENT_ID
    settings.OIDC_CLIENT_SECRET = CLIENT_SECRET
    server.broken.clear()
    server.person("s-1", preferred_username="nora", groups=["ml", "staff"])
    return server


def go(client: Client, *, wanted: str = "") -> str:
    """Start the sign-on; return the provider's address."""
    answer = client.get("/sign-in/oidc/", {"next": wanted} if wanted else {})
    assert answer.status_code == 302, answer.content
    return str(answer["Location"])


def come_back(client: Client, address: str) -> Any:
    parts = urlsplit(address)
    return client.get(f"{parts.path}?{parts.query}")


def sign_on(provider: IdentityProvider, subject: str | None = "s-1", *, wanted: str = "") -> tuple[Client, Any]:
    client = Client()
    return client, come_back(client, provider.consent(go(client, wanted=wanted), subject))


def who(client: Client) -> str | None:
    answer = client.get("/api/v1/me/")
    return answer.json()["name"] if answer.status_code == 200 else None


def refused(answer: Any, words: str, status: int = 403) -> bool:
    text = answer.content.decode()
    return answer.status_code == status and words in text and "csrfmiddlewaretoken" in text


def test_somebody_new_comes_in_over_real_redirects(provider: IdentityProvider, live_server: Any, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    browser = requests.Session()
    page = browser.get(f"{live_server.url}/claims/", timeout=10)
    assert "/sign-in/oidc/?next=/claims/" in page.text
    away = browser.get(f"{live_server.url}/sign-in/oidc/?next=/claims/", allow_redirects=False, timeout=10)
    there = away.headers["Location"]
    assert there.startswith(f"{provider.issuer}/oauth2/authorize?")
    back = provider.consent(there, "s-1")
    assert back.startswith(f"{live_server.url}/sign-in/oidc/return/?")
    landed = browser.get(back, timeout=10)
    assert (landed.status_code, landed.url) == (200, f"{live_server.url}/claims/")
    nora = User.objects.get(username="nora")
    assert not nora.has_usable_password()
    assert not nora.is_operator
    assert [(row.issuer, row.subject) for row in nora.identities.all()] == [(provider.issuer, "s-1")]


def test_the_request_carries_state_nonce_and_an_s256_challenge(cast: Cast, provider: IdentityProvider) -> None:
    asked = query_of(go(Client()))
    assert asked["response_type"] == "code"
    assert asked["code_challenge_method"] == "S256"
    assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 20
    again = query_of(go(Client()))
    assert all(asked[name] != again[name] for name in ("state", "nonce", "code_challenge"))


def test_it_is_in_the_audit_log(cast: Cast, provider: IdentityProvider) -> None:
    sign_on(provider)
    assert list(AuditEvent.objects.filter(object_id="nora").order_by("pk").values_list("actor", "action")) == [
        ("oidc", "person.link"),
        ("user:nora", "person.sign_in"),
    ]


def test_the_session_is_another_one_afterwards(cast: Cast, provider: IdentityProvider) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    before = client.cookies["sessionid"].value
    come_back(client, address)
    first = client.cookies["sessionid"].value
    assert first != before
    assert who(client) == "user:nora"
    session = client.session
    session[BEGUN] -= 11 * 3600
    session.save()
    come_back(client, provider.consent(go(client), "s-1"))
    assert client.cookies["sessionid"].value != first
    assert client.session[BEGUN] == pytest.approx(time.time(), abs=60)


def test_a_person_is_known_by_subject_whatever_their_name(cast: Cast, provider: IdentityProvider) -> None:
    sign_on(provider)
    provider.person("s-1", preferred_username="nora-b")
    provider.person("s-2", preferred_username="nora")
    assert who(sign_on(provider)[0]) == "user:nora"
    assert refused(sign_on(provider, "s-2")[1], "There is a nora already")


def test_a_name_opens_no_account_that_has_a_password(cast: Cast, provider: IdentityProvider) -> None:
    olga = User.objects.get(username="olga")
    olga.set_password("correct horse battery")
    olga.save()
    provider.person("s-3", preferred_username="olga")
    client, answer = sign_on(provider, "s-3")
    assert refused(answer, "There is a olga already")
    assert who(client) is None
    assert not Identity.objects.exists()


def test_somebody_made_here_before_is_linked_by_their_verified_address(cast: Cast, provider: IdentityProvider) -> None:
    vera = without_password("vera", email="Vera@acme.example")
    provider.person("s-4", preferred_username="vera", email="vera@acme.example", email_verified=True)
    client, _ = sign_on(provider, "s-4")
    assert client.get("/api/v1/me/").json()["roles"] == {"acme": "viewer"}
    assert Identity.objects.get().user == vera


@pytest.mark.parametrize(
    ("kept", "claims"),
    [
        ("", {}),
        ("", {"email": "", "email_verified": True}),
        ("vera@acme.example", {}),
        ("vera@acme.example", {"email": "vera@acme.example"}),
        ("vera@acme.example", {"email": "vera@acme.example", "email_verified": "true"}),
        ("vera@acme.example", {"email": "other@acme.example", "email_verified": True}),
        ("vera@acme.example", {"email": ["vera@acme.example"], "email_verified": True}),
    ],
)
def test_a_name_alone_opens_no_account(
    cast: Cast, provider: IdentityProvider, kept: str, claims: dict[str, Any]
) -> None:
    without_password("vera", email=kept)
    provider.person("s-4", preferred_username="vera", **claims)
    client, answer = sign_on(provider, "s-4")
    assert refused(answer, "There is a vera already")
    assert who(client) is None
    assert not Identity.objects.exists()


def without_password(name: str, **facts: str) -> User:
    user = User.objects.get(username=name)
    user.set_unusable_password()
    for field, value in facts.items():
        setattr(user, field, value)
    user.save()
    return user


@pytest.mark.parametrize("claims", [{}, {"preferred_username": ""}, {"preferred_username": 7},
                                    {"preferred_username": "a b"}, {"preferred_username": "x" * 151}])  # fmt: skip
def test_a_name_that_is_none_is_refused(cast: Cast, provider: IdentityProvider, claims: dict[str, Any]) -> None:
    provider.person("s-5", **claims)
    assert refused(sign_on(provider, "s-5")[1], "name")
    assert not Identity.objects.exists()


def test_an_account_that_is_switched_off_stays_shut(cast: Cast, provider: IdentityProvider) -> None:
    sign_on(provider)
    User.objects.filter(username="nora").update(is_active=False)
    client, answer = sign_on(provider)
    assert refused(answer, "switched off")
    assert who(client) is None


def test_groups_give_roles_and_take_them_at_the_next_sign_in(
    cast: Cast, provider: IdentityProvider, settings: Any
) -> None:
    settings.OIDC_GROUP_ROLES = [
        ("ml", "acme", "member"), ("leads", "acme", "admin"), ("staff", "nowhere", "viewer"), ("ops", None, "operator"),
    ]  # fmt: skip
    client, _ = sign_on(provider)
    assert client.get("/api/v1/me/").json()["roles"] == {"acme": "member"}
    tenants.set_member(principal=SYSTEM, tenant=cast.globex, user=User.objects.get(username="nora"), role="viewer")
    provider.person("s-1", preferred_username="nora", groups=["ml", "leads", "ops"])
    assert sign_on(provider)[0].get("/api/v1/me/").json()["operator"] is True
    provider.person("s-1", preferred_username="nora", groups=["leads"])
    assert sign_on(provider)[0].get("/api/v1/me/").json()["roles"] == {"acme": "admin", "globex": "viewer"}
    provider.person("s-1", preferred_username="nora", groups="ml")
    me = sign_on(provider)[0].get("/api/v1/me/").json()
    assert (me["operator"], me["roles"]) == (False, {"globex": "viewer"}), "no group gives globex, none takes it"
    told = AuditEvent.objects.filter(actor="oidc").exclude(action="person.link").order_by("pk")
    assert [event.action for event in told] == [
        "member.set", "person.operator", "member.set", "person.operator", "member.remove",
    ]  # fmt: skip


def test_without_rules_groups_change_nothing(cast: Cast, provider: IdentityProvider) -> None:
    client, _ = sign_on(provider)
    assert client.get("/api/v1/me/").json()["roles"] == {}


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
def test_it_never_leads_to_another_site(cast: Cast, provider: IdentityProvider, wanted: str) -> None:
    assert sign_on(provider, wanted=wanted)[1]["Location"] == "/"


def test_an_answer_counts_once(cast: Cast, provider: IdentityProvider) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    assert come_back(client, address).status_code == 302
    assert refused(come_back(client, address), "begin again")


def test_an_answer_to_another_browser_does_not_count(cast: Cast, provider: IdentityProvider) -> None:
    address = provider.consent(go(Client()), "s-1")
    victim = Client()
    go(victim)
    assert refused(come_back(victim, address), "begin again")
    assert who(victim) is None


@pytest.mark.parametrize("query", ["", "?code=x", "?state=x", "?code=x&state=y", "?error=x", "?error=%00&state=%00"])
def test_an_answer_to_no_question_is_refused(cast: Cast, provider: IdentityProvider, query: str) -> None:
    assert refused(Client().get(f"/sign-in/oidc/return/{query}"), "begin again")


@pytest.mark.parametrize(("name", "words"), [("nonce", "cannot be trusted"), ("code_verifier", "begin again")])
def test_a_swapped_nonce_or_verifier_is_refused(cast: Cast, provider: IdentityProvider, name: str, words: str) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    session = client.session
    [key] = [key for key, _ in session.items() if key.startswith("_state_oidc_")]
    session[key]["data"][name] = "x" * 43
    session.save()
    assert refused(come_back(client, address), words)
    assert who(client) is None


def test_a_token_that_another_key_signed_is_refused(
    cast: Cast, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    real = inside.OpenIDCode.get_jwt_config
    forger = RSAKey.generate_key(2048).as_dict(private=True)
    monkeypatch.setattr(
        inside.OpenIDCode, "get_jwt_config", lambda *args, **more: {**real(*args, **more), "key": forger}
    )
    assert refused(come_back(client, address), "cannot be trusted")


def test_a_provider_that_offers_keyed_digests_alone_is_refused(
    cast: Cast, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery = f"{provider.issuer}/.well-known/openid-configuration"
    offered = {**requests.get(discovery, timeout=5).json(), "id_token_signing_alg_values_supported": ["HS256"]}
    key = OctKey.generate_key(256, {"kid": "k"}).as_dict(private=True)
    real = inside.OpenIDCode.get_jwt_config
    client = Client()
    address = provider.consent(go(client), "s-1")
    provider.broken["/.well-known/openid-configuration"] = json.dumps(offered).encode()
    provider.broken["/jwks"] = json.dumps({"keys": [key]}).encode()
    monkeypatch.setattr(
        inside.OpenIDCode, "get_jwt_config", lambda *args, **more: {**real(*args, **more), "key": key, "alg": "HS256"}
    )
    assert refused(come_back(client, address), "cannot be trusted")


@pytest.mark.parametrize("claim", ["iss", "aud"])
def test_a_token_of_another_issuer_or_for_another_client_is_refused(
    cast: Cast, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    real = inside.OpenIDCode.get_jwt_config
    if claim == "iss":
        monkeypatch.setattr(
            inside.OpenIDCode,
            "get_jwt_config",
            lambda *args, **more: {**real(*args, **more), "iss": "https://evil.example"},
        )
    else:
        monkeypatch.setattr(inside.OpenIDCode, "get_audiences", lambda *args: ["another"], raising=False)
    assert refused(come_back(client, address), "cannot be trusted")


def test_userinfo_of_somebody_else_is_refused(
    cast: Cast, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    real = inside._user_claims_for_scope
    monkeypatch.setattr(inside.OpenIDCode, "generate_user_info", lambda self, user, scope: real(user, scope))
    monkeypatch.setattr(inside, "_user_claims_for_scope", lambda user, scope: {"sub": "s-9"})
    assert refused(come_back(client, address), "cannot be trusted")


NONSENSE = [b"", b"[]", b"{}", b"null", b"7", b'"x"', b"<html>", b"[" * 5000, b"\xff\xfe"]


@pytest.mark.parametrize("said", NONSENSE)
@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/oauth2/token", "/jwks", "/userinfo"])
def test_a_provider_that_talks_nonsense_lets_nobody_in(
    cast: Cast, provider: IdentityProvider, path: str, said: bytes
) -> None:
    client = Client()
    address = provider.consent(go(client), "s-1")
    provider.broken[path] = said
    answer = come_back(client, address)
    assert refused(answer, "cannot be trusted") or refused(answer, "begin again")
    assert who(client) is None
    if path.startswith("/."):
        assert refused(Client().get("/sign-in/oidc/"), "does not answer", 503)


@pytest.mark.parametrize("claims", [{"groups": [{}, ["ml"], None, 7, "ml"]}, {"groups": {"ml": 1}}, {"groups": 7}])
def test_groups_that_are_no_names_give_nothing(
    cast: Cast, provider: IdentityProvider, settings: Any, claims: dict[str, Any]
) -> None:
    settings.OIDC_GROUP_ROLES = [("ml", "acme", "viewer")]
    provider.person("s-1", preferred_username="nora", **claims)
    roles = sign_on(provider)[0].get("/api/v1/me/").json()["roles"]
    assert roles == ({"acme": "viewer"} if isinstance(claims["groups"], list) else {})


def test_a_subject_that_is_too_long_is_refused(cast: Cast, provider: IdentityProvider) -> None:
    provider.person("s" * 256, preferred_username="long")
    assert refused(sign_on(provider, "s" * 256)[1], "who you are")


def test_the_provider_is_not_asked_without_end(
    cast: Cast, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "SIGN_ON", attempts.Limit("sign-on", 3, timedelta(minutes=15)))
    client, _ = sign_on(provider)
    address = go(client)
    for answer in (come_back(client, provider.consent(address, "s-1")), Client().get("/sign-in/oidc/")):
        assert refused(answer, "Too many attempts", 429)
        assert int(answer.headers["Retry-After"]) > 0


def test_a_provider_that_names_itself_otherwise_is_refused(
    cast: Cast, provider: IdentityProvider, settings: Any
) -> None:
    settings.OIDC_ISSUER += "/"
    assert refused(Client().get("/sign-in/oidc/"), "does not answer", 503)


def test_a_provider_that_is_away_leaves_the_password(cast: Cast, provider: IdentityProvider, settings: Any) -> None:
    settings.OIDC_ISSUER = "http://localhost:9"
    assert refused(Client().get("/sign-in/oidc/"), "or use a password", 503)


def test_who_changes_their_mind_is_told_so(cast: Cast, provider: IdentityProvider) -> None:
    assert refused(sign_on(provider, None)[1], "You cancelled")


def test_nobody_writes_lines_into_the_log(provider: IdentityProvider, db: None, caplog: Any) -> None:
    """The heads of the audit log's chain are in the log: a stranger's text must not look like one."""
    forged = "no\n2026-11-21 12:00:00,000 INFO    apps.quotas.services.audit_chain: audit log sealed to 1:00"
    Client().get("/sign-in/oidc/return/", {"error": "x\r\u2028", "error_description": forged})
    ours = next(item.formatter for item in logging.getLogger().handlers if isinstance(item.formatter, OneLine))
    lines = [ours.format(record) for record in caplog.records if record.name.startswith("apps.")]
    assert [len(line.splitlines()) for line in lines] == [1]
    assert "\\x0a2026-11-21" in lines[0]


def test_the_button_is_there_only_where_there_is_a_provider(
    cast: Cast, provider: IdentityProvider, settings: Any
) -> None:
    assert "your organisation" in Client().get("/sign-in/").content.decode()
    settings.OIDC_ISSUER = ""
    assert not openid.is_configured()
    assert "your organisation" not in Client().get("/sign-in/").content.decode()
    assert Client().get("/sign-in/oidc/").status_code == 404
    assert Client().get("/sign-in/oidc/return/").status_code == 404
