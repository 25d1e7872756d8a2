"""Invitations, deactivation, password resets, sessions, personal tokens."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.utils import timezone

from apps.quotas.models import AuditEvent, Invitation, Membership, Token, User, UserSession
from apps.quotas.services import resets
from tests.cast import Api, Cast, ask, cast, give_plenty

__all__ = ["cast"]

pytestmark = pytest.mark.django_db
GOOD = "correct horse battery"


def signed_in(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.get(username=name))
    return client


def invite(api: Api, **facts: Any) -> str:
    answer = api.post("invitations/", {"username": "zoe", "tenant": "acme", **facts})
    assert answer.status == 201, answer.body
    return str(answer.body["link"]).removeprefix("http://testserver")


def accept(link: str, **facts: str) -> Any:
    return Client().post(link, {"username": "zoe", "password": GOOD, "again": GOOD, **facts})


def test_an_invited_person_is_a_member_and_the_link_works_once(cast: Cast) -> None:
    link = invite(cast.anna, role="viewer")
    assert accept(link).status_code == 302
    assert Membership.objects.get(user__username="zoe").role == "viewer"
    assert accept(link, username="eve").status_code == 404
    assert not User.objects.filter(username="eve").exists()
    found = AuditEvent.objects.filter(action__startswith="invitation.").order_by("pk").values_list("action", flat=True)
    assert list(found) == ["invitation.create", "invitation.accept"]


@pytest.mark.parametrize("end", ["expired", "revoked", "demoted", "deactivated"])
def test_an_invitation_ends(cast: Cast, end: str) -> None:
    link = invite(cast.anna)
    row = Invitation.objects.get()
    if end == "expired":
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    elif end == "revoked":
        assert cast.anna.delete(f"invitations/{row.uid}/").status == 204
    elif end == "demoted":
        Membership.objects.filter(user__username="anna").update(role="member")
    else:
        assert cast.olga.patch("users/anna/", {"active": False}).status == 200
    assert accept(link).status_code == 404
    assert not User.objects.filter(username="zoe").exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"username": "anna"}, "This name is taken"),
        ({"username": "a b"}, "Enter a valid username"),
        ({"password": "short", "again": "short"}, "too short"),
        ({"again": "another battery"}, "The two passwords differ"),
    ],
)
def test_bad_input_is_refused_at_its_field_and_changes_nothing(cast: Cast, wrong: dict[str, str], said: str) -> None:
    link, users = invite(cast.anna), User.objects.count()
    answer = accept(link, **wrong)
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert User.objects.count() == users
    assert Invitation.objects.get().used_at is None


def test_wrong_links_are_throttled(cast: Cast) -> None:
    client, link = Client(), invite(cast.anna)
    found = {client.get("/invitation/wrong/").status_code for _ in range(31)}
    assert found == {404, 429}
    assert client.get(link).status_code == 200


def test_deactivation_ends_sessions_and_tokens_at_once(cast: Cast) -> None:
    client = signed_in("max")
    assert client.get("/account/").status_code == 200
    assert cast.max.get("me/").status == 200
    assert cast.olga.patch("users/max/", {"active": False}).body["active"] is False
    assert client.get("/account/").status_code == 302
    assert cast.max.get("me/").status == 401
    assert not UserSession.objects.filter(user__username="max").exists()
    assert cast.olga.patch("users/max/", {"active": True}).status == 200
    assert cast.max.get("me/").status == 401


@pytest.mark.parametrize("change", [{"active": False}, {"operator": False}])
def test_the_last_operator_stays(cast: Cast, change: dict[str, bool]) -> None:
    assert cast.olga.patch("users/olga/", change).code == "last-operator"
    User.objects.filter(username="anna").update(is_operator=True)
    assert cast.olga.patch("users/olga/", change).status == 200


def test_a_personal_token_has_its_owners_present_rights_and_name(cast: Cast) -> None:
    give_plenty(cast.acme)
    client = Api(None)
    client.client.force_login(User.objects.get(username="max"))
    made = client.post("me/tokens/", {"name": "ci", "scopes": ["claims:read", "claims:write"]})
    api = Api(made.body["token"])
    claim = api.post("claims/", {"tenant": "acme", "core_request": 10, "memory_mib": 100})
    assert claim.body["created_by"] == "user:max via token ci"
    actor = AuditEvent.objects.get(action="claim.create").actor
    assert actor == f"user:max via token ci (gpc_{made.body['key']})"
    assert api.get("tenants/").status == 403
    Membership.objects.filter(user__username="max").update(role="viewer")
    assert api.post("claims/", {"tenant": "acme", "core_request": 10, "memory_mib": 100}).status == 403
    assert cast.olga.post(f"tokens/{made.body['key']}/rotate/", {}).code == "person-missing"
    assert client.delete(f"tokens/{made.body['key']}/").status == 204
    assert api.get("claims/").status == 401


def test_a_token_of_a_tenant_makes_no_personal_token(cast: Cast) -> None:
    assert cast.anna.post("me/tokens/", {"name": "all"}).code == "person-missing"
    assert not Token.objects.filter(personal=True).exists()


def test_a_reset_link_works_once_and_ends_sessions(cast: Cast) -> None:
    old = signed_in("max")
    link = cast.olga.post("users/max/password-reset/").body["link"].removeprefix("http://testserver")
    client = Client()
    form = client.get(link, follow=True).redirect_chain[-1][0]
    # A browser sends the origin `null` with a form of a page that forbids the referrer altogether.
    assert client.get(form).headers["Referrer-Policy"] == "same-origin"
    bad = client.post(form, {"new_password1": "short", "new_password2": "short"})
    assert bad.status_code == 422
    assert client.post(form, {"new_password1": GOOD, "new_password2": GOOD}).status_code == 302
    assert User.objects.get(username="max").check_password(GOOD)
    assert old.get("/account/").status_code == 302
    assert Client().get(link, follow=True).status_code == 404


def test_a_reset_by_mail_names_no_account(cast: Cast, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EMAIL_HOST = "mail"
    asked: list[str] = []
    monkeypatch.setattr("apps.console.access.joining.send_reset_link.delay", lambda address, _: asked.append(address))
    known, unknown = (Client().post("/password/", {"email": one}).content for one in ("max@x.org", "no@x.org"))
    assert known == unknown
    assert asked == ["max@x.org", "no@x.org"]
    user = User.objects.get(username="max")
    user.email = "max@x.org"
    user.set_password(GOOD)
    user.save()
    sent = [
        resets.send_link(address=one, base_url="http://x/") for one in ("max@x.org", "no@x.org", *["max@x.org"] * 3)
    ]
    assert sent == [1, 0, 1, 1, 0]
    assert "http://x/password/" in str(mail.outbox[0].body)
    assert {Client().post("/password/", {"email": "a@x.org"}).status_code for _ in range(9)} == {200, 429}


def test_sessions_are_listed_and_ended(cast: Cast) -> None:
    first, second = signed_in("max"), signed_in("max")
    page = first.get("/account/").content.decode()
    assert "This session" in page
    first.post("/account/sessions/end/")
    assert second.get("/account/").status_code == 302
    assert first.get("/account/").status_code == 200


def test_the_time_zone_is_used_on_pages(cast: Cast) -> None:
    client = signed_in("max")
    assert client.post("/account/time-zone/", {"time_zone": "Mars/Olympus"}).status_code == 422
    assert client.post("/account/time-zone/", {"time_zone": "Asia/Taipei"}).status_code == 302
    give_plenty(cast.acme)
    claim = ask(cast)
    assert "CST" in client.get(f"/claims/{claim.uid}/").content.decode()
    assert cast.olga.get("me/").body["time_zone"] == ""


@pytest.mark.slow
def test_the_password_is_changed_with_the_present_one_only(cast: Cast) -> None:
    user = User.objects.get(username="max")
    user.set_password(GOOD)
    user.save()
    client, new = signed_in("max"), "another horse battery"
    body = {"current": "wrong", "password": new, "again": new}
    answer = client.post("/account/password/", body)
    assert (answer.status_code, "not your current password" in answer.content.decode()) == (422, True)
    assert client.post("/account/password/", body | {"current": GOOD}).status_code == 302
    assert client.get("/account/").status_code == 200


def test_without_local_accounts_nobody_is_invited(cast: Cast, settings: Any) -> None:
    settings.LOCAL_ACCOUNTS = False
    assert cast.anna.post("invitations/", {"tenant": "acme"}).code == "local-accounts-off"
    assert "Passwords are switched off" in Client().get("/sign-in/").content.decode()
    assert "identity provider" in signed_in("olga").get("/users/").content.decode()
    assert Client().post("/sign-in/", {"username": "max", "password": GOOD}).status_code == 403
