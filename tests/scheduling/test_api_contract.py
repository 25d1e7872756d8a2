"""The contract of every route: authorization, idempotency of POST, and the form of errors.

What changes nothing is asked of all routes within one test: a test for each would take most of its time for itself.
"""

from typing import Any

import pytest
from django.db import transaction

from apps.quotas.api.views import ApiView
from apps.quotas.models import User
from tests.cast import Api, token_for
from tests.scheduling.routes import (
    NOT_IDEMPOTENT,
    OPERATIONS,
    OPERATORS,
    ROUTES,
    SHARED,
    WITHOUT_TOKEN,
    Platform,
    Route,
    dump_database,
    name_of,
)

POSTS = [route for route in ROUTES if "POST" in route.methods]
LISTS = [route for route in ROUTES if getattr(route.view, "lists", False)]
every_post = pytest.mark.parametrize("route", POSTS, ids=name_of)


def test_every_route_with_an_object_has_one_to_be_asked_for(platform: Platform) -> None:
    assert {route.pattern for route in ROUTES if route.has_object} == set(platform.paths)


def test_control_what_is_stored_shows_one_changed_word(platform: Platform) -> None:
    before = dump_database()
    platform.claim.change(name="another")
    assert {name for name, rows in dump_database().items() if rows != before[name]} == {"Claim"}


def test_without_a_token_nobody_gets_in(platform: Platform) -> None:
    before = dump_database()
    for route, method in OPERATIONS:
        if route.pattern not in WITHOUT_TOKEN:
            answer = platform.cast.nobody.call(method, platform.path(route), route.body(method))
            assert (answer.status, answer.code) == (401, "unauthenticated"), (method, route.pattern)
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="gpucloud"', (method, route.pattern)
            assert dump_database() == before, (method, route.pattern)


def test_a_foreign_tenant_finds_nothing_and_changes_nothing(platform: Platform) -> None:
    before = dump_database()
    for route, method in OPERATIONS:
        if not route.has_object:
            continue
        answer = platform.cast.gus.call(method, platform.path(route), route.body(method), If_Match="*")
        if route.pattern in SHARED and method == "GET":
            assert answer.status == 200, route.pattern
        elif route.pattern in SHARED | OPERATORS:
            assert (answer.status, answer.code) == (403, "role-missing"), (method, route.pattern)
        else:
            assert (answer.status, answer.code) == (404, "not-found"), (method, route.pattern)
        assert dump_database() == before, (method, route.pattern)


def test_a_list_shows_a_foreign_tenant_nothing_of_acmes(platform: Platform) -> None:
    for route in LISTS:
        answer = platform.cast.gus.get(platform.path(route))
        if answer.status == 200:
            assert b"acme" not in answer.raw, route.pattern
            assert str(platform.claim.uid).encode() not in answer.raw, route.pattern
        else:
            assert answer.status in (403, 404), route.pattern


@pytest.mark.parametrize("query", ["claim={claim}", "tenant=acme"])
def test_utilisation_of_a_foreign_claim_or_tenant_is_not_found(platform: Platform, query: str) -> None:
    answer = platform.cast.gus.get("utilization/?" + query.format(claim=platform.claim.uid))
    assert answer.code == "not-found"


def test_a_claim_for_a_foreign_tenant_is_refused_as_if_there_were_none(platform: Platform) -> None:
    before = dump_database()
    facts = {"core_request": 1, "memory_mib": 1}
    foreign = platform.cast.gus.post("claims/", {"tenant": "acme", **facts})
    absent = platform.cast.gus.post("claims/", {"tenant": "nowhere", **facts})
    assert foreign.status == absent.status == 400
    assert foreign.body["errors"]["tenant"][0].replace("acme", "") == absent.body["errors"]["tenant"][0].replace(
        "nowhere", ""
    )
    assert dump_database() == before


def test_a_token_without_the_scope_is_told_which(platform: Platform) -> None:
    narrow = Api(token_for(platform.cast.acme, "admin", scopes=["audit:read"]))
    before = dump_database()
    for route, method in OPERATIONS:
        if route.pattern not in {"me/", "audit/"} | WITHOUT_TOKEN:
            answer = narrow.call(method, platform.path(route), route.body(method))
            assert (answer.status, answer.code) == (403, "scope-missing"), (method, route.pattern)
            assert answer.body["scope"] in answer.body["detail"], (method, route.pattern)
            assert dump_database() == before, (method, route.pattern)


def test_every_post_honours_idempotency_keys() -> None:
    for route in POSTS:
        assert route.pattern in NOT_IDEMPOTENT or route.view.post.idempotent, route.pattern  # type: ignore[attr-defined]


@every_post
def test_a_repeated_post_gets_the_first_answer_and_has_one_effect(
    platform: Platform, route: Route, settings: Any
) -> None:
    # Who asks for a test mail needs a server for mails, and an address.
    settings.EMAIL_HOST = "mail"
    User.objects.update(email="olga@example.org")
    if route.pattern in NOT_IDEMPOTENT:
        return
    path, body = platform.path(route), route.body("POST")
    first = platform.cast.olga.post(path, body, Idempotency_Key="key-1", If_Match="*")
    assert first.status in (200, 201, 202), first.body
    after = dump_database()
    again = platform.cast.olga.post(path, body, Idempotency_Key="key-1", If_Match="*")
    assert (again.status, again.headers["Idempotency-Replayed"]) == (first.status, "true")
    assert {name: value for name, value in again.body.items() if value is not None or name not in SECRETS} == {
        name: value for name, value in first.body.items() if name not in SECRETS
    }
    assert [again.headers.get(name) for name in ("ETag", "Location")] == [
        first.headers.get(name) for name in ("ETag", "Location")
    ]
    assert dump_database() == after


SECRETS = {"token", "enrolment_token", "command", "secret", "link"}


@every_post
def test_a_key_that_comes_with_another_body_is_refused(platform: Platform, route: Route) -> None:
    if route.pattern in NOT_IDEMPOTENT or not route.body("POST"):
        return
    path, body = platform.path(route), route.body("POST")
    assert platform.cast.olga.post(path, body, Idempotency_Key="key-1").status in (200, 201)
    after = dump_database()
    answer = platform.cast.olga.post(path, {**body, "name": "other"}, Idempotency_Key="key-1")
    assert (answer.status, answer.code) == (422, "idempotency-key-reused")
    assert dump_database() == after


def test_a_key_is_its_senders_own(platform: Platform) -> None:
    body = {"tenant": "acme", "core_request": 1, "memory_mib": 1}
    answers = [who.post("claims/", body, Idempotency_Key="k") for who in (platform.cast.max, platform.cast.anna)]
    assert [answer.status for answer in answers] == [201, 201]
    assert answers[0].body["uid"] != answers[1].body["uid"]


def test_a_preview_is_another_request_than_the_act(platform: Platform) -> None:
    asked = platform.cast.max.post("claims/?dry_run=true", ROUTES_BODY, Idempotency_Key="k")
    assert asked.body["dry_run"] is True
    assert platform.cast.max.post("claims/", ROUTES_BODY, Idempotency_Key="k").code == "idempotency-key-reused"


def test_a_refused_post_is_not_remembered(platform: Platform) -> None:
    body = {"tenant": "acme", "core_request": 1, "memory_mib": 10**6}
    assert platform.cast.max.post("claims/", body, Idempotency_Key="k").status == 422
    assert platform.cast.max.post("claims/", {**body, "memory_mib": 1}, Idempotency_Key="k").status == 201


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
def test_a_senseless_key_is_refused(platform: Platform, key: str) -> None:
    answer = platform.cast.max.post("claims/", ROUTES_BODY, Idempotency_Key=key)
    assert answer.code == "invalid"


ROUTES_BODY = {"tenant": "acme", "core_request": 1, "memory_mib": 1}


def test_a_secret_is_not_shown_a_second_time(platform: Platform) -> None:
    body = {"name": "ci", "tenant": "acme"}
    first = platform.cast.anna.post("tokens/", body, Idempotency_Key="k")
    again = platform.cast.anna.post("tokens/", body, Idempotency_Key="k")
    assert first.body["token"].startswith("gpc_")
    assert again.body["token"] is None
    assert first.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    ["/api/", "/api/v1/", "/api/v2/claims/", "/api/v1/nothing/", "/api/v1/claims/not-a-uid/", "/api/v1/quotas/x/"],
)
def test_an_unknown_url_answers_as_everything_else(platform: Platform, path: str) -> None:
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = platform.cast.olga.call(method, path)
        assert (answer.status, answer.code) == (404, "not-found"), method


@pytest.mark.parametrize("method", ["PUT", "TRACE", "BREW"])
def test_a_method_that_a_route_lacks_is_refused(platform: Platform, method: str) -> None:
    for route in ROUTES:
        answer = platform.cast.olga.call(method, platform.path(route))
        assert (answer.status, answer.code) == (405, "method-not-allowed"), route.pattern
        assert set(route.methods) <= set(answer.headers["Allow"].split(", ")), route.pattern


@pytest.mark.slow
def test_the_form_without_a_slash_is_served_too(platform: Platform) -> None:
    for route, method in OPERATIONS:
        if method == "GET":
            query = "?tenant=acme" if route.pattern == "utilization/" else ""
            bare = platform.cast.olga.get(platform.path(route).rstrip("/") + query)
            assert bare.status == 200, route.pattern
        else:
            answer = platform.cast.nobody.call(method, platform.path(route).rstrip("/"), route.body(method))
            assert answer.status == (403 if route.pattern in WITHOUT_TOKEN else 401), (method, route.pattern)


def test_a_key_counts_for_both_forms_of_a_route(platform: Platform) -> None:
    first = platform.cast.max.post("claims/", ROUTES_BODY, Idempotency_Key="k")
    again = platform.cast.max.post("claims", ROUTES_BODY, Idempotency_Key="k")
    assert first.body["uid"] == again.body["uid"]


def test_what_a_route_offers_can_be_asked(platform: Platform) -> None:
    for route in ROUTES:
        assert platform.cast.olga.call("OPTIONS", platform.path(route)).status == 200, route.pattern


def test_another_version_than_the_present_one_changes_nothing(platform: Platform) -> None:
    before = dump_database()
    for route, method in OPERATIONS:
        if method != "GET":
            path, body = platform.path(route), route.body(method)
            answer = platform.cast.olga.call(method, path, body, If_Match='"99999"')
            assert (answer.status, answer.code) == (412, "stale-version"), (method, route.pattern)
            assert dump_database() == before, (method, route.pattern)


# Switches of a person, which overwrite nothing.
UNTAGGED = {"me/", "users/<str:username>/"}
TAGGED = [route for route in ROUTES if "PATCH" in route.methods and route.pattern not in UNTAGGED]


@pytest.mark.parametrize("route", TAGGED, ids=name_of)
def test_what_was_read_can_be_changed_by_its_tag(platform: Platform, route: Route) -> None:
    tag = platform.cast.olga.get(platform.path(route)).headers["ETag"]
    assert tag.startswith('"'), "strong"
    changed = platform.cast.olga.patch(platform.path(route), route.body("PATCH"), If_Match=tag)
    assert changed.status == 200, changed.body
    assert changed.headers["ETag"] != tag
    assert platform.cast.olga.get(platform.path(route)).headers["ETag"] == changed.headers["ETag"]


@pytest.mark.parametrize("route", [route for route in ROUTES if "PATCH" in route.methods], ids=name_of)
def test_a_patch_that_names_nothing_to_change_is_refused(platform: Platform, route: Route) -> None:
    before = dump_database()
    path = platform.path(route)
    assert platform.cast.olga.patch(path, {}, If_Match="*").code == "invalid-fields"
    fixed = {"version": 1, "created_at": "2026-01-01T00:00:00Z"}
    answer = platform.cast.olga.patch(path, {**route.body("PATCH"), **fixed}, If_Match="*")
    assert set(answer.body["errors"]) == set(fixed)
    assert dump_database() == before


@pytest.mark.slow
def test_every_answer_says_how_much_more_may_come(platform: Platform) -> None:
    for route, method in OPERATIONS:
        with transaction.atomic():
            answer = platform.cast.olga.call(method, platform.path(route), route.body(method), If_Match="*")
            transaction.set_rollback(True)
        assert answer.headers["RateLimit"].startswith('"caller";r='), (method, route.pattern)


@pytest.mark.parametrize("route", LISTS, ids=name_of)
def test_a_list_can_be_asked_for_what_is_new(platform: Platform, route: Route) -> None:
    path = platform.path(route)
    rows = platform.cast.olga.get(path).body["results"]
    moment = next((name for name in ("updated_at", "at") if name in rows[0]), None)
    if moment is None:
        assert route.pattern in WITHOUT_TIMES
        return
    name = {"updated_at": "updated_since", "at": "since"}[moment]
    newest = max(row[moment] for row in rows)
    found = platform.cast.olga.get(f"{path}?{name}={newest}").body["results"]
    assert {row[moment] for row in found} == {newest}
    assert platform.cast.olga.get(f"{path}?{name}=2999-01-01T00:00:00Z").body["results"] == []


# A membership, a user and an invitation have no history of their own: the audit log has it.
WITHOUT_TIMES = {"tenants/<slug:slug>/members/", "users/", "invitations/"}


def test_the_interactive_reference_is_served_from_here(platform: Platform) -> None:
    page = platform.cast.nobody.call("GET", "/api/docs/")
    assert page.status == 200
    assert b"/static/drf_spectacular_sidecar/" in page.raw
    assert b"//cdn" not in page.raw


def test_a_host_that_is_not_ours_is_a_problem_too(platform: Platform) -> None:
    answer = platform.cast.olga.get("claims/?limit=1", Host="evil.example")
    assert (answer.status, answer.code) == (400, "bad-request")


def test_an_answer_in_another_format_cannot_be_had(platform: Platform) -> None:
    answer = platform.cast.olga.get("claims/", Accept="text/html")
    assert (answer.status, answer.code) == (406, "not-acceptable")


@pytest.mark.parametrize("kind", ["budgets", "limit-ranges", "member-limits", "prices", "quotas"])
def test_what_another_removes_between_the_finding_and_the_lock_is_not_found(
    platform: Platform, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    route = next(route for route in ROUTES if route.pattern == f"{kind}/<int:pk>/")
    find = ApiView.find

    def find_and_lose(view: ApiView, key: object) -> Any:
        row = find(view, key)
        type(row).objects.filter(pk=row.pk).delete()
        return row

    monkeypatch.setattr(ApiView, "find", find_and_lose)
    for method in {"PATCH", "DELETE"} & set(route.methods):
        with transaction.atomic():
            answer = platform.cast.olga.call(method, platform.path(route), route.body(method), If_Match="*")
            assert (answer.status, answer.code) == (404, "not-found")
            transaction.set_rollback(True)
