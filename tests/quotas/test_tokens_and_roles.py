"""Authentication by tokens, and permissions of each role."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from apps.quotas.management.commands import create_operator
from apps.quotas.models import AuditEvent, IdempotencyRecord, Membership, Token, User
from apps.quotas.principals import SCOPES, SYSTEM
from apps.quotas.services import tenants
from tests.cast import Api, Cast, Machine, give, give_plenty, token_for

CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


def turned_away(api: Api, **headers: Any) -> bool:
    answer = api.get("me/", **headers)
    assert answer.status == 200 or answer.code == "unauthenticated"
    return answer.status == 401


def test_a_token_lets_its_holder_in_and_says_who_it_is(cast: Cast) -> None:
    body = cast.max.get("me/").body
    assert body["roles"] == {"acme": "member"}
    assert body["operator"] is False
    assert body["name"].endswith(f"via token {body['token']['name']}")
    assert body["token"] == {"key": body["token"]["key"], "name": "member's", "expires_at": None}


@pytest.mark.parametrize(
    "header",
    [
        "", "Bearer", "Bearer ", "Basic eDp5", "Bearer gpc_", "Bearer gpc_.", "Bearer gpc_x", "Bearer gpc_x.y",
        "Bearer gpc_é.é", "Bearer ÿÿÿÿ", "Bearer gpc_" + "a" * 12 + "." + "b" * 10_000, "Bearer gpn_x.y", "Token x",
        "Bearer gpc_\x00.x", "Bearer gpc_a.\x00",
    ],
)  # fmt: skip
def test_what_is_no_token_is_turned_away(cast: Cast, header: str) -> None:
    assert turned_away(cast.nobody, Authorization=header)


def test_a_right_key_with_a_wrong_secret_is_turned_away(cast: Cast) -> None:
    assert cast.max.token is not None
    assert turned_away(Api(cast.max.token[:-1] + ("A" if cast.max.token[-1] != "A" else "B")))
    assert turned_away(Api(cast.max.token.partition(".")[0] + "."))
    assert turned_away(Api(cast.max.token + "é"))


def test_another_tokens_secret_does_not_fit(cast: Cast) -> None:
    assert cast.max.token is not None
    assert cast.anna.token is not None
    assert turned_away(Api(cast.max.token.partition(".")[0] + "." + cast.anna.token.partition(".")[2]))


def test_an_expired_token_is_turned_away(cast: Cast) -> None:
    api = Api(token_for(cast.acme, expires_at=timezone.now() + timedelta(hours=1)))
    assert not turned_away(api)
    Token.objects.exclude(expires_at=None).update(expires_at=timezone.now())
    assert turned_away(api)


def test_a_revoked_token_is_turned_away_at_once(cast: Cast) -> None:
    made = cast.anna.post("tokens/", {"name": "ci", "tenant": "acme"}).body
    api = Api(made["token"])
    assert not turned_away(api)
    assert cast.anna.delete(f"tokens/{made['key']}/").status == 204
    assert turned_away(api)
    assert cast.anna.delete(f"tokens/{made['key']}/").status == 204


@pytest.mark.parametrize(
    ("address", "inside"),
    [("10.1.2.3", True), ("11.0.0.1", False), ("2001:db8::1", True), ("2001:db9::1", False), ("", False),
     # IPv4 as a socket of both families shows it.
     ("::ffff:10.1.2.3", True), ("::ffff:11.0.0.1", False)],
)  # fmt: skip
def test_a_token_bound_to_networks_is_valid_from_there_only(cast: Cast, address: str, inside: bool) -> None:
    text = token_for(cast.acme, cidrs=["10.0.0.0/8", "2001:db8::/32"])
    assert turned_away(Api(text, REMOTE_ADDR=address)) is not inside


@pytest.mark.parametrize("wrong", [{"cidrs": ["10.0.0.0/8"] * 65}, {"scopes": ["claims:read"] * (len(SCOPES) + 1)}])
def test_a_token_has_no_endless_lists(cast: Cast, wrong: dict[str, Any]) -> None:
    answer = cast.anna.post("tokens/", {"name": "ci", "tenant": "acme", **wrong})
    assert (answer.status, list(answer.body["errors"])) == (400, list(wrong))


def test_the_audit_log_says_from_which_networks_a_token_is_valid(cast: Cast) -> None:
    cast.anna.post("tokens/", {"name": "ci", "tenant": "acme", "cidrs": ["10.0.0.0/8"]})
    assert cast.anna.get("audit/?action=token.create").body["results"][0]["after"]["cidrs"] == ["10.0.0.0/8"]


def test_a_member_who_is_removed_by_two_at_once_is_removed_once(cast: Cast) -> None:
    for found in [Membership.objects.get(user__username="max") for _ in range(2)]:
        tenants.remove_member(principal=SYSTEM, membership=found)
    assert AuditEvent.objects.filter(action="member.remove").count() == 1


def test_the_longest_names_fit_the_audit_log(cast: Cast) -> None:
    tenant, name = "a" * 63, "b" * 150
    User.objects.create(username=name)
    assert cast.olga.post("tenants/", {"slug": tenant}).status == 201
    assert cast.olga.post(f"tenants/{tenant}/members/", {"username": name, "role": "admin"}).status == 201
    assert cast.olga.get(f"audit/?object_id={tenant}/{name}").body["results"][0]["action"] == "member.set"
    assert cast.olga.delete(f"tenants/{tenant}/members/{name}/").status == 204


def test_the_first_operator_is_in_the_audit_log(
    db: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(create_operator, "getpass", lambda _: "correct horse battery")
    call_command("create_operator", "olga")
    olga = Api(capsys.readouterr().out.strip())
    assert [row["action"] for row in olga.get("audit/").body["results"]] == ["token.create", "person.operator"]


def test_a_person_who_is_no_longer_active_has_no_valid_token(cast: Cast) -> None:
    User.objects.filter(username="max").update(is_active=False)
    assert turned_away(cast.max)
    assert not turned_away(cast.anna)


def test_a_session_needs_its_csrf_token(cast: Cast) -> None:
    api = Api(None, enforce_csrf_checks=True)
    api.client.force_login(User.objects.get(username="anna"))
    give_plenty(cast.acme)
    assert api.get("me/").body["roles"] == {"acme": "admin"}
    answer = api.post("claims/", CLAIM)
    assert (answer.status, answer.code) == (403, "denied")


@pytest.mark.parametrize(
    ("method", "path", "body", "least"),
    [
        ("GET", "claims/", None, "viewer"),
        ("GET", "quotas/", None, "viewer"),
        ("GET", "nodes/", None, "viewer"),
        ("POST", "claims/", CLAIM, "member"),
        ("POST", "tokens/", {"name": "ci", "tenant": "acme"}, "admin"),
        ("POST", "tenants/acme/members/", {"username": "gus", "role": "viewer"}, "admin"),
        ("DELETE", "tenants/acme/members/vera/", None, "admin"),
        ("POST", "tokens/", {"name": "ci"}, "operator"),
        ("POST", "tenants/", {"slug": "initech"}, "operator"),
        ("PATCH", "tenants/acme/", {"weight": 2}, "operator"),
        ("DELETE", "tenants/acme/", None, "operator"),
        ("POST", "quotas/", {"tenant": "acme", "resource": "gpus", "hard": 1}, "operator"),
        ("POST", "pools/", {"name": "shared"}, "operator"),
        ("POST", "nodes/", {"name": "gpu9", "pool": "default"}, "operator"),
        ("PATCH", "nodes/gpu1/", {"cordoned": True}, "operator"),
        ("POST", "nodes/gpu1/enrolment/", None, "operator"),
        ("GET", "rounds/", None, "operator"),
        ("GET", "utilization/?node=gpu1", None, "operator"),
    ],
)
def test_a_role_may_do_what_it_may_and_no_more(
    cast: Cast, method: str, path: str, body: dict[str, Any] | None, least: str
) -> None:
    give_plenty(cast.acme)
    Machine("gpu1", cast.pool)
    ranks = {"viewer": cast.vera, "member": cast.max, "admin": cast.anna, "operator": cast.olga}
    reached = False
    for name, who in ranks.items():
        reached = reached or name == least
        answer = who.call(method, path, body or {})
        if reached:
            # It may be done already; that is another error than a missing permission.
            assert answer.status < 400 or answer.status in (404, 409), (name, answer.body)
        else:
            assert (answer.status, answer.code) == (403, "role-missing"), name


def test_a_viewer_neither_resizes_nor_releases_nor_reads_the_secret_of_a_claim(cast: Cast) -> None:
    give_plenty(cast.acme)
    uid = cast.max.post("claims/", CLAIM).body["uid"]
    for method, path, body in [
        ("PATCH", f"claims/{uid}/", {"core_limit": 50}),
        ("DELETE", f"claims/{uid}/", {}),
        ("POST", f"claims/{uid}/release/", {}),
        ("GET", f"claims/{uid}/env/", {}),
    ]:
        assert cast.vera.call(method, path, body).code == "role-missing"


def test_nobody_hands_out_a_scope_that_they_lack(cast: Cast) -> None:
    narrow = Api(token_for(cast.acme, "admin", scopes=["tokens:write", "claims:read"]))
    body = {"name": "wide", "tenant": "acme", "scopes": ["claims:read", "quotas:write"]}
    answer = narrow.post("tokens/", body)
    assert (answer.status, answer.code, answer.body["scope"]) == (403, "scope-missing", "quotas:write")
    assert narrow.post("tokens/", {**body, "scopes": ["claims:read"]}).status == 201


def test_a_member_sees_the_tokens_made_by_them_and_an_admin_the_tenants(cast: Cast) -> None:
    assert [row["name"] for row in cast.max.get("tokens/").body["results"]] == ["member's"]
    assert len(cast.anna.get("tokens/").body["results"]) == 3
    assert len(cast.olga.get("tokens/").body["results"]) == 5


def test_a_token_of_one_tenant_does_not_show_its_makers_tokens_in_another(cast: Cast) -> None:
    gus = User.objects.get(username="gus")
    tenants.set_member(principal=SYSTEM, tenant=cast.acme, user=gus, role="member")
    token_for(cast.globex, "member", user=gus)
    stranger = Api(token_for(cast.acme, "member", user=gus))
    shown = stranger.get("tokens/").body["results"]
    assert {row["tenant"] for row in shown} == {"acme"}


def test_no_answer_holds_what_is_kept_of_a_secret(cast: Cast) -> None:
    digest = Token.objects.values_list("digest", flat=True)[0]
    assert digest.encode() not in cast.olga.get("tokens/").raw
    assert set(cast.olga.get("tokens/").body["results"][0]) == {
        "key", "name", "tenant", "role", "scopes", "cidrs", "owner", "personal", "expires_at", "revoked_at",
        "last_used_at", "created_at", "updated_at", "version",
    }  # fmt: skip


def test_every_change_is_in_the_audit_log_with_who_and_from_where(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=1000)
    uid = cast.max.post("claims/", CLAIM).body["uid"]
    cast.max.patch(f"claims/{uid}/", {"core_request": 20})
    cast.max.delete(f"claims/{uid}/")
    rows = cast.anna.get(f"audit/?object_id={uid}").body["results"]
    assert [row["action"] for row in rows] == ["claim.release", "claim.resize", "claim.create"]
    assert {row["source_ip"] for row in rows} == {"127.0.0.1"}
    assert all(row["actor"].startswith("user:") for row in rows)
    assert rows[1]["before"]["core_request"] == 10
    assert rows[1]["after"]["core_request"] == 20


def test_a_member_does_not_read_the_audit_log_and_an_admin_reads_the_tenants_only(cast: Cast) -> None:
    give(cast.globex, core_percent=100)
    assert cast.max.get("audit/").body["results"] == []
    assert cast.anna.get("audit/?action=quota.create").body["results"] == []
    assert len(cast.gus.get("audit/?action=quota.create").body["results"]) == 1


def test_a_token_text_is_kept_nowhere(cast: Cast) -> None:
    text = cast.anna.post("tokens/", {"name": "ci", "tenant": "acme"}, Idempotency_Key="k").body["token"]
    secret = text.partition(".")[2]
    assert secret.encode() not in cast.olga.get("audit/").raw
    assert secret not in str(IdempotencyRecord.objects.values())


def test_a_platform_token_ends_with_its_makers_office(cast: Cast) -> None:
    assert cast.olga.get("me/").status == 200
    User.objects.filter(username="olga").update(is_operator=False)
    assert cast.olga.get("me/").code == "unauthenticated"


def test_a_token_with_an_end_or_with_networks_makes_no_tokens(cast: Cast) -> None:
    body = {"name": "child", "tenant": "acme"}
    for facts in ({"expires_at": timezone.now() + timedelta(hours=1)}, {"cidrs": ["127.0.0.0/8"]}):
        limited = Api(token_for(cast.acme, "admin", **facts))
        assert limited.post("tokens/", body).code == "token-limited"
    assert cast.anna.post("tokens/", body).status == 201


def test_a_tenants_token_reaches_no_further_than_its_maker_does_now(cast: Cast) -> None:
    anna = Membership.objects.filter(user__username="anna")
    assert cast.anna.get("me/").body["roles"] == {"acme": "admin"}
    anna.update(role="viewer")
    assert cast.anna.get("me/").body["roles"] == {"acme": "viewer"}
    anna.delete()
    assert cast.anna.get("me/").code == "unauthenticated"


@pytest.mark.parametrize(
    "facts",
    [
        {"expires_at": timezone.now() + timedelta(hours=1)},
        {"cidrs": ["127.0.0.0/8"]},
        {"scopes": ["tenants:read", "tenants:write"]},
    ],
)
def test_a_token_with_less_gives_no_role_which_has_everything(cast: Cast, facts: dict[str, Any]) -> None:
    for api in (Api(token_for(cast.acme, "admin", **facts)), Api(token_for(None, **facts))):
        for name, role in (("gus", "viewer"), ("max", "admin")):
            refused = api.post("tenants/acme/members/", {"username": name, "role": role})
            assert (refused.status, refused.code) == (403, "role-beyond")
        # Its permission is to remove.
        assert api.post("tenants/acme/members/", {"username": "max", "role": "viewer"}).status == 201
        tenants.set_member(principal=SYSTEM, tenant=cast.acme, user=User.objects.get(username="max"), role="member")
    assert Membership.objects.get(user__username="max").role == "member"
    assert not Membership.objects.filter(tenant=cast.acme, user__username="gus").exists()
