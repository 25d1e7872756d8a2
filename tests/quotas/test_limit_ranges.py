"""Limit ranges of a tenant's single claims."""

from typing import Any

import pytest

from apps.quotas.models import AuditEvent, LimitRange, Pool
from apps.quotas.principals import SYSTEM
from apps.quotas.services import limit_ranges, tenants
from tests.cast import Answer, Cast, give_plenty

ASKED = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


@pytest.fixture(autouse=True)
def plenty(cast: Cast) -> None:
    give_plenty(cast.acme, cast.globex)


def bound(cast: Cast, field: str, *, pool: Pool | None = None, **bounds: int) -> LimitRange:
    return limit_ranges.create_range(principal=SYSTEM, tenant=cast.acme, pool=pool, field=field, **bounds)


def ask(cast: Cast, **values: Any) -> Answer:
    return cast.max.post("claims/", {name: value for name, value in {**ASKED, **values}.items() if value != "unsaid"})


@pytest.mark.parametrize("field", ["core_request", "memory_mib"])
def test_what_a_claim_needs_and_does_not_say_comes_from_the_tenants_default(cast: Cast, field: str) -> None:
    refused = ask(cast, **{field: "unsaid"})
    assert (refused.status, refused.code, refused.body["field"]) == (422, "field-missing", field)
    bound(cast, field, default=42)
    assert ask(cast, **{field: "unsaid"}).body[field] == 42
    assert ask(cast, **{field: 7}).body[field] == 7


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [("core_request", 4, 51), ("memory_mib", 4, 51), ("gpu_count", 4, 51), ("time_limit_seconds", 4, 51)],
)
def test_a_claim_keeps_to_minimum_and_maximum(cast: Cast, field: str, low: int, high: int) -> None:
    bound(cast, field, minimum=5, maximum=50)
    for value in (low, high):
        refused = ask(cast, **{field: value})
        assert (refused.status, refused.code) == (422, "out-of-range")
        wanted = {"field": field, "requested": value, "minimum": 5, "maximum": 50, "pool": None}
        assert {name: refused.body[name] for name in wanted} == wanted
    for value in (5, 50):
        assert ask(cast, **{field: value}).status == 201


def test_a_ceiling_unsaid_is_the_default_but_never_below_the_request(cast: Cast) -> None:
    bound(cast, "core_limit", default=40)
    assert ask(cast).body["core_limit"] == 40
    assert ask(cast, core_request=60).body["core_limit"] == 60
    assert ask(cast, core_limit=20).body["core_limit"] == 20


def test_a_ceiling_below_a_default_request_is_refused(cast: Cast) -> None:
    bound(cast, "core_request", default=40)
    refused = ask(cast, core_request="unsaid", core_limit=30)
    assert (refused.status, refused.code) == (422, "limit-below-request")


def test_no_time_limit_is_longer_than_any(cast: Cast) -> None:
    bound(cast, "time_limit_seconds", maximum=3600)
    for value in (None, "unsaid"):
        assert ask(cast, time_limit_seconds=value).code == "out-of-range"
    assert ask(cast, time_limit_seconds=3600).status == 201


def test_the_pools_default_stands_before_the_one_for_all_and_both_bounds_hold(cast: Cast) -> None:
    shared = tenants.create_pool(principal=SYSTEM, name="shared")
    bound(cast, "memory_mib", default=100, maximum=1000)
    bound(cast, "memory_mib", pool=shared, default=200, minimum=150, maximum=2000)
    assert ask(cast, memory_mib="unsaid").body["memory_mib"] == 100
    assert ask(cast, memory_mib="unsaid", pool="shared").body["memory_mib"] == 200
    assert ask(cast, memory_mib=149, pool="shared").body["pool"] == "shared"
    assert ask(cast, memory_mib=1001, pool="shared").body["pool"] is None


def test_another_tenants_ranges_do_not_count(cast: Cast) -> None:
    bound(cast, "memory_mib", maximum=10)
    assert cast.gus.post("claims/", {**ASKED, "tenant": "globex"}).status == 201


def test_a_resize_keeps_to_the_range_in_what_it_changes(cast: Cast) -> None:
    claim = ask(cast).body
    bound(cast, "memory_mib", maximum=50)
    bound(cast, "core_request", maximum=20)
    path = f"claims/{claim['uid']}/"
    assert cast.max.patch(path, {"core_request": 21}).code == "out-of-range"
    assert cast.max.patch(path, {"core_request": 20}).status == 200
    assert cast.max.patch(path, {"memory_mib": 60}).code == "out-of-range"


def test_ranges_are_made_changed_and_removed_by_operators_with_a_trace(cast: Cast) -> None:
    body = {"tenant": "acme", "field": "gpu_count", "maximum": 4}
    assert cast.anna.post("limit-ranges/", body).status == 403
    made = cast.olga.post("limit-ranges/", body)
    assert made.status == 201
    path = f"limit-ranges/{made.body['id']}/"
    assert cast.olga.post("limit-ranges/", body).code == "name-taken"
    assert cast.olga.patch(path, {"minimum": 5}).code == "range-invalid"
    assert cast.olga.patch(path, {"maximum": None}).code == "range-invalid"
    assert cast.olga.patch(path, {"minimum": 2, "default": 3}).body["default"] == 3
    assert cast.vera.get(path).body["maximum"] == 4
    assert cast.gus.get(path).status == 404
    assert cast.olga.delete(path).status == 204
    actions = AuditEvent.objects.filter(object_type="limit-range").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["limit-range.create", "limit-range.set", "limit-range.delete"]


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("core_request", 100),
        ("core_limit", 100),
        ("memory_mib", 16 * 1024 * 1024),
        ("gpu_count", 64),
        ("time_limit_seconds", 366 * 86400),
    ],
)
def test_no_default_is_above_what_any_claim_may_say(cast: Cast, field: str, most: int) -> None:
    body = {"tenant": "acme", "field": field, "default": most}
    refused = cast.olga.post("limit-ranges/", {**body, "default": most + 1})
    assert (refused.status, refused.code, refused.body["most"]) == (422, "range-invalid", most)
    made = cast.olga.post("limit-ranges/", body)
    assert cast.olga.patch(f"limit-ranges/{made.body['id']}/", {"default": most + 1}).code == "range-invalid"
    assert ask(cast, **{field: "unsaid"}).body[field] == most
    assert ask(cast, **{field: most}).status == 201
    assert cast.max.post("claims/", {**ASKED, field: most + 1}).status == 400
