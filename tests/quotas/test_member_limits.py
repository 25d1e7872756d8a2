"""Limits of single members within a tenant's quota."""

from typing import Any

import pytest

from apps.quotas.models import AuditEvent, MemberLimit, User
from apps.quotas.principals import SYSTEM, of_user
from apps.quotas.services import member_limits
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Answer, Api, Cast, Machine, ask, give_plenty, token_for


@pytest.fixture(autouse=True)
def plenty(cast: Cast) -> None:
    give_plenty(cast.acme, cast.globex)


def limit(cast: Cast, hard: int | None, *, who: str | None = "max", resource: str = "core_percent") -> MemberLimit:
    user = User.objects.get(username=who) if who else None
    return member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=user, resource=resource, hard=hard)


def claim(api: Api, core: int = 10, **more: Any) -> Answer:
    return api.post("claims/", {"tenant": "acme", "core_request": core, "memory_mib": 100, **more})


def test_a_member_holds_no_more_than_its_limit(cast: Cast) -> None:
    limit(cast, 50)
    assert claim(cast.max, 30).status == 201
    refused = claim(cast.max, 21)
    assert (refused.status, refused.code) == (409, "member-limit-exceeded")
    wanted = {"resource": "core_percent", "hard": 50, "used": 30, "requested": 21}
    assert {name: refused.body[name] for name in wanted} == wanted
    assert claim(cast.max, 20).status == 201


def test_others_of_the_tenant_are_not_bound_by_it(cast: Cast) -> None:
    limit(cast, 0)
    assert claim(cast.max).code == "member-limit-exceeded"
    assert claim(cast.anna).status == 201


def test_a_members_tokens_count_to_the_member(cast: Cast) -> None:
    limit(cast, 50)
    maxs = User.objects.get(username="max")
    for _ in range(2):
        another = Api(token_for(cast.acme, "member", user=maxs))
        assert claim(another, 20).status == 201
    ask(cast, principal=of_user(maxs), core_request=10)  # signed in, without a token
    assert claim(cast.max, 1).body["used"] == 50


def test_who_is_no_member_is_not_bound_by_what_holds_for_each(cast: Cast) -> None:
    limit(cast, 10, who=None)
    for api in (cast.olga, Api(token_for(cast.acme, "member"))):
        assert claim(api, 20).status == 201
    for api in (cast.max, cast.anna):
        assert claim(api, 20).code == "member-limit-exceeded"
        assert claim(api, 10).status == 201


@pytest.mark.parametrize(("own", "core", "status"), [(30, 20, 201), (30, 31, 409), (None, 99, 201), (0, 1, 409)])
def test_a_members_own_limit_stands_before_the_one_for_each(
    cast: Cast, own: int | None, core: int, status: int
) -> None:
    limit(cast, 10, who=None)
    limit(cast, own)
    assert claim(cast.max, core).status == status


def test_what_is_given_back_can_be_had_again(cast: Cast) -> None:
    limit(cast, 10)
    first = claim(cast.max).body["uid"]
    assert claim(cast.max).status == 409
    cast.max.delete(f"claims/{first}/")
    assert claim(cast.max).status == 201


def test_growing_counts(cast: Cast) -> None:
    limit(cast, 30)
    uid = claim(cast.max, 20).body["uid"]
    assert cast.max.patch(f"claims/{uid}/", {"core_request": 31}).code == "member-limit-exceeded"
    assert cast.max.patch(f"claims/{uid}/", {"core_request": 30}).status == 200


def test_whoever_grows_it_a_claim_counts_to_its_maker(cast: Cast) -> None:
    limit(cast, 30)
    uid = claim(cast.max, 20).body["uid"]
    assert cast.anna.patch(f"claims/{uid}/", {"core_request": 31}).code == "member-limit-exceeded"


def test_a_claim_over_its_members_limit_may_wait(cast: Cast) -> None:
    limit(cast, 10)
    Machine("gpu1", cast.pool)
    first = claim(cast.max).body["uid"]
    second = claim(cast.max, when_over_quota="wait").body["uid"]
    run_round(cast.pool)
    waiting = cast.max.get(f"claims/{second}/").body
    assert (waiting["state"], waiting["reasons"][0]["code"]) == ("queued", "member-limit-exceeded")
    member_limits.change_limit(principal=SYSTEM, row=MemberLimit.objects.get(), hard=20)
    run_round(cast.pool)
    assert cast.max.get(f"claims/{second}/").body["state"] == "assigned"
    assert cast.max.get(f"claims/{first}/").body["state"] == "assigned"


def test_a_tenants_admin_sets_limits_and_leaves_a_trace(cast: Cast) -> None:
    body = {"tenant": "acme", "member": "max", "resource": "memory_mib", "hard": 1000}
    assert cast.max.post("member-limits/", body).status == 403
    made = cast.anna.post("member-limits/", body)
    assert (made.status, made.body["member"]) == (201, "max")
    path = f"member-limits/{made.body['id']}/"
    assert cast.anna.post("member-limits/", body).code == "name-taken"
    assert cast.anna.patch(path, {"hard": 5}).body["hard"] == 5
    assert cast.gus.get(path).status == 404
    assert cast.anna.delete(path).status == 204
    actions = AuditEvent.objects.filter(object_type="member-limit").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["member-limit.create", "member-limit.set", "member-limit.delete"]


def test_only_members_can_be_limited(cast: Cast) -> None:
    for name in ("gus", "nobody"):
        refused = cast.anna.post(
            "member-limits/", {"tenant": "acme", "member": name, "resource": "memory_mib", "hard": 1000}
        )
        assert refused.body["errors"] == {"member": [f"{name} is not a member of this tenant."]}
