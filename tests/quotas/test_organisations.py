"""Organisations: quotas shared by all tenants below, moves, and what the API says of them."""

from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from apps.accounting.services.ledger_check import differences, repair_all
from apps.quotas.models import AuditEvent, Organisation, OrganisationQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import organisations, tenants
from apps.scheduling.models import Claim
from tests.cast import Answer, Api, Cast, Machine, ask, give, give_plenty


@pytest.fixture
def tree(cast: Cast) -> dict[str, Organisation]:
    """A university with two departments; acme and globex, with plenty each, belong to physics."""
    give_plenty(cast.acme, cast.globex)
    top = make("university", None)
    rows = {"university": top, "physics": make("physics", top), "chemistry": make("chemistry", top)}
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, organisation=rows["physics"])
    return rows


def make(slug: str, parent: Organisation | None) -> Organisation:
    return organisations.create_organisation(principal=SYSTEM, slug=slug, name=slug, parent=parent)


def limit(row: Organisation, hard: int | None, resource: str = "core_percent", **more: Any) -> OrganisationQuota:
    facts = {"pool": None, **more}
    return organisations.create_quota(principal=SYSTEM, organisation=row, resource=resource, hard=hard, **facts)


def claim(api: Api, core: int = 10, tenant: str = "acme", **more: Any) -> Answer:
    return api.post("claims/", {"tenant": tenant, "core_request": core, "memory_mib": 100, **more})


def used(slug: str) -> int:
    return OrganisationQuota.objects.get(organisation__slug=slug, resource="core_percent").used


def test_tenants_together_hold_no_more_than_their_organisation_may(cast: Cast, tree: dict[str, Organisation]) -> None:
    limit(tree["physics"], 50)
    limit(tree["university"], 1000)
    assert claim(cast.anna, 30).status == 201
    assert claim(cast.gus, 20, tenant="globex").status == 201
    refused = claim(cast.anna, 1)
    assert (refused.status, refused.code) == (409, "quota-exceeded")
    assert refused.body["organisation"] == "physics"
    wanted = {"resource": "core_percent", "organisation": "physics", "hard": 50, "used": 50, "requested": 1}
    assert [{name: item[name] for name in wanted} for item in refused.body["shortages"]] == [wanted]
    assert refused.body["detail"] == (
        "Core quota of organisation physics exceeded: requested 1 %, 0 % of 50 % available "
        "(its tenants hold 50 % together)"
    )
    assert (used("physics"), used("university")) == (50, 50)


def test_every_level_without_room_is_named(cast: Cast, tree: dict[str, Organisation]) -> None:
    limit(tree["physics"], 20)
    limit(tree["university"], 10)
    limit(tree["university"], 10, "memory_mib", pool=cast.pool)
    refused = claim(cast.anna, 30)
    assert [(item["organisation"], item["resource"]) for item in refused.body["shortages"]] == [
        ("physics", "core_percent"),
        ("university", "core_percent"),
        ("university", "memory_mib"),
    ]
    assert "in pool default" in refused.body["detail"]
    assert (used("physics"), used("university")) == (0, 0)


def test_a_claim_that_waits_shows_the_level_without_room_and_starts_once_there_is(
    cast: Cast, tree: dict[str, Organisation]
) -> None:
    limit(tree["physics"], 30)
    held = claim(cast.gus, 30, tenant="globex").body
    waits = claim(cast.anna, 30, when_over_quota="wait").body
    assert "organisation physics" in cast.anna.get(f"claims/{waits['uid']}/").body["reasons"][0]["detail"]
    assert cast.gus.post(f"claims/{held['uid']}/release/").status == 200
    assert cast.anna.get(f"claims/{waits['uid']}/").body["reasons"][0]["code"] == "quota-available"


def test_released_claims_and_resized_ones_are_given_back_at_every_level(
    cast: Cast, tree: dict[str, Organisation]
) -> None:
    limit(tree["physics"], 50)
    limit(tree["university"], None)
    one = claim(cast.anna, 40).body
    assert cast.anna.patch(f"claims/{one['uid']}/", {"core_request": 10}).status == 200
    assert (used("physics"), used("university")) == (10, 10)
    assert cast.anna.post(f"claims/{one['uid']}/release/").status == 200
    assert (used("physics"), used("university")) == (0, 0)
    assert not differences()


def test_a_new_quota_counts_what_is_held_and_takes_nothing_away(cast: Cast, tree: dict[str, Organisation]) -> None:
    assert claim(cast.anna, 40).status == 201
    assert claim(cast.gus, 30, tenant="globex").status == 201
    quota = limit(tree["university"], 50)
    assert (quota.used, quota.excess) == (70, 20)
    assert claim(cast.anna, 1).status == 409
    assert not differences()


def test_a_lowered_quota_admits_nothing_new(cast: Cast, tree: dict[str, Organisation]) -> None:
    quota = limit(tree["physics"], 100)
    one = claim(cast.anna, 40).body
    claim(cast.gus, 40, tenant="globex")
    answer = cast.olga.patch(f"organisation-quotas/{quota.pk}/", {"hard": 50})
    assert (answer.status, answer.body["excess"], answer.body["free"]) == (200, 30, 0)
    cast.anna.post(f"claims/{one['uid']}/release/")
    quota.refresh_from_db()
    assert (quota.used, quota.excess) == (40, 0)
    assert claim(cast.anna, 10).status == 201
    assert claim(cast.anna, 1).status == 409


# Moves


def test_a_tenant_takes_what_it_holds_along(cast: Cast, tree: dict[str, Organisation]) -> None:
    for row in tree.values():
        limit(row, 100)
    claim(cast.anna, 40)
    assert cast.olga.patch("tenants/acme/", {"organisation": "chemistry"}).status == 200
    assert (used("physics"), used("chemistry"), used("university")) == (0, 40, 40)
    assert cast.olga.patch("tenants/acme/", {"organisation": None}).status == 200
    assert (used("chemistry"), used("university")) == (0, 0)
    assert not differences()


def test_a_tenant_does_not_move_where_there_is_no_room(cast: Cast, tree: dict[str, Organisation]) -> None:
    limit(tree["physics"], 100)
    limit(tree["chemistry"], 30)
    claim(cast.anna, 40)
    refused = cast.olga.patch("tenants/acme/", {"organisation": "chemistry"})
    assert (refused.status, refused.code) == (409, "organisation-full")
    assert refused.body["detail"] == (
        "Core quota of organisation chemistry: 40 % would move there, 30 % of 30 % available: "
        "release claims, or raise these quotas first."
    )
    assert (used("physics"), used("chemistry")) == (40, 0)
    assert Tenant.objects.get(slug="acme").organisation == tree["physics"]


def test_a_department_takes_along_what_all_its_tenants_hold(cast: Cast, tree: dict[str, Organisation]) -> None:
    company = make("company", None)
    for row in (*tree.values(), company):
        limit(row, 100)
    claim(cast.anna, 40)
    claim(cast.gus, 30, tenant="globex")
    assert cast.olga.patch("organisations/physics/", {"parent": "company"}).status == 200
    assert (used("physics"), used("university"), used("company")) == (70, 0, 70)
    assert not differences()
    event = AuditEvent.objects.filter(action="organisation.change").latest("pk")
    assert (event.before, event.after) == ({"parent": "university"}, {"parent": "company"})


def test_the_tree_has_no_circle_and_a_bounded_depth(cast: Cast, tree: dict[str, Organisation]) -> None:
    for parent in ("university", "physics"):
        refused = cast.olga.patch("organisations/university/", {"parent": parent})
        assert (refused.status, refused.code) == (422, "wrong-parent")
    third = make("optics", tree["physics"])
    make("lasers", third)
    refused = cast.olga.post("organisations/", {"slug": "deeper", "parent": "lasers"})
    assert (refused.status, refused.code) == (422, "wrong-parent")
    make("company", None)
    refused = cast.olga.patch("organisations/university/", {"parent": "company"})
    assert "at most 4 levels, and this would be 5" in refused.body["detail"]
    with pytest.raises(IntegrityError, match="organisation_not_its_own_parent"):
        Organisation.objects.filter(pk=third.pk).update(parent=third)


def test_only_an_empty_organisation_is_removed(cast: Cast, tree: dict[str, Organisation]) -> None:
    limit(tree["chemistry"], 100)
    for slug, inside in (("university", ["chemistry", "physics"]), ("physics", ["acme", "globex"])):
        refused = cast.olga.delete(f"organisations/{slug}/")
        assert (refused.status, refused.code, refused.body["inside"]) == (409, "organisation-in-use", inside)
    assert cast.olga.delete("organisations/chemistry/").status == 204
    assert not OrganisationQuota.objects.exists()


# Who sees and changes what


def test_members_see_the_organisations_above_them_and_operators_change_them(
    cast: Cast, tree: dict[str, Organisation]
) -> None:
    limit(tree["university"], 100)
    limit(tree["chemistry"], 100)
    shown = [row["slug"] for row in cast.anna.get("organisations/").body["results"]]
    assert sorted(shown) == ["physics", "university"]
    assert cast.anna.get("organisations/chemistry/").status == 404
    quotas = cast.anna.get("organisation-quotas/").body["results"]
    assert [row["organisation"] for row in quotas] == ["university"]
    assert cast.anna.patch("organisations/physics/", {"name": "Mine"}).status == 403
    assert cast.anna.patch(f"organisation-quotas/{quotas[0]['id']}/", {"hard": 1000}).status == 403
    assert cast.anna.get("tenants/acme/").body["organisation"] == "physics"


def test_names_are_taken_once(cast: Cast, tree: dict[str, Organisation]) -> None:
    assert cast.olga.post("organisations/", {"slug": "physics"}).code == "name-taken"
    limit(tree["physics"], 100)
    again = cast.olga.post("organisation-quotas/", {"organisation": "physics", "resource": "core_percent", "hard": 1})
    assert again.code == "name-taken"
    assert cast.olga.post("organisations/", {"slug": "x", "parent": "nowhere"}).status == 400


# Drift, and what others pay


def test_drift_is_found_and_repaired(cast: Cast, tree: dict[str, Organisation]) -> None:
    quota = limit(tree["university"], 100)
    claim(cast.anna, 40)
    OrganisationQuota.objects.filter(pk=quota.pk).update(used=7)
    found = differences()
    assert [(item.subject, item.number, item.is_now, item.should_be) for item in found] == [
        ("organisation university/*/core_percent", "used", 7, 40)
    ]
    repair_all(principal=SYSTEM)
    assert used("university") == 40
    assert not differences()
    event = AuditEvent.objects.get(action="organisation-quota.repair")
    assert (event.before, event.after) == ({"used": 7}, {"used": 40})


def test_a_claim_outside_of_organisations_takes_no_further_statement(cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        ask(cast, core_request=10, memory_mib=1)
    assert not [item for item in queries if "quotas_organisation" in item["sql"].replace("organisation_id", "")]


def test_a_claim_inside_of_organisations_takes_two_more_whatever_their_number(cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    counts, parent = [], None
    for level in ("a", "b", "c", "d"):
        with CaptureQueriesContext(connection) as queries:
            ask(cast, core_request=10, memory_mib=1)
        counts.append(len(queries))
        parent = make(level, parent)
        limit(parent, None)
        limit(parent, None, "memory_mib")
        tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=parent)
        cast.acme.refresh_from_db()
    assert counts == [counts[0], *[counts[0] + 2] * 3]
    assert Claim.objects.count() == 4


# Previews: what a change would do, before it is made


def preview(answer: Answer) -> dict[str, dict[str, Any]]:
    """Return the levels of a preview by organisation."""
    assert answer.status == 200, answer.body
    assert answer.body["dry_run"] is True
    return {row["organisation"]: row for row in answer.body["levels"]}


def test_a_smaller_quota_says_first_what_is_above_it_and_who_would_wait(
    cast: Cast, tree: dict[str, Organisation]
) -> None:
    Machine("gpu1", cast.pool).stay_online()
    quota = limit(tree["physics"], 100)
    limit(tree["university"], 500)
    assert claim(cast.anna, 60).status == claim(cast.gus, 20, tenant="globex").status == 201
    path = f"organisation-quotas/{quota.pk}/?dry_run=true"
    shown = cast.olga.patch(path, {"hard": 50}, If_Match="*")
    assert preview(shown)["physics"] == {
        "organisation": "physics", "pool": None, "resource": "core_percent", "hard_before": 100, "used_before": 80,
        "hard": 50, "used": 80, "free": 0, "excess": 30, "changed": True,
    }  # fmt: skip
    assert set(preview(shown)) == {"physics"}
    quota.refresh_from_db()
    assert (quota.hard, quota.excess) == (100, 0)
    waiting = claim(cast.anna, 40, when_over_quota="wait")
    assert waiting.status == 201
    more = cast.olga.patch(path, {"hard": 200}, If_Match="*").body
    starts = [(item["claim"], item["changed"]) for item in more["runnable"] if item["claim"] == waiting.body["uid"]]
    assert starts == [(waiting.body["uid"], True)]
    assert used("physics") == 80


def test_a_new_quota_shows_the_use_that_counts_in_it(cast: Cast, tree: dict[str, Organisation]) -> None:
    assert claim(cast.anna, 60).status == 201
    body = {"organisation": "physics", "resource": "core_percent", "hard": 40}
    level = preview(cast.olga.post("organisation-quotas/?dry_run=true", body))["physics"]
    assert (level["hard_before"], level["hard"], level["used"], level["excess"]) == (None, 40, 60, 20)
    assert not OrganisationQuota.objects.exists()


def test_a_move_shows_the_levels_that_are_left_and_joined(cast: Cast, tree: dict[str, Organisation]) -> None:
    for slug, hard in (("physics", 100), ("chemistry", 100), ("university", 100)):
        limit(tree[slug], hard)
    assert claim(cast.anna, 60).status == 201
    moved = preview(cast.olga.patch("tenants/acme/?dry_run=true", {"organisation": "chemistry"}, If_Match="*"))
    # The university is above both places.
    assert {slug: (row["used_before"], row["used"]) for slug, row in moved.items()} == {
        "physics": (60, 0),
        "chemistry": (0, 60),
    }
    below = cast.olga.patch("organisations/physics/?dry_run=true", {"parent": "chemistry"}, If_Match="*")
    assert {slug: (row["used_before"], row["used"]) for slug, row in preview(below).items()} == {"chemistry": (0, 60)}
    OrganisationQuota.objects.filter(organisation=tree["chemistry"]).update(hard=50)
    refused = cast.olga.patch("tenants/acme/?dry_run=true", {"organisation": "chemistry"}, If_Match="*")
    assert refused.code == "organisation-full"
    assert Tenant.objects.get(slug="acme").organisation == tree["physics"]
    assert (used("physics"), used("chemistry")) == (60, 0)


@pytest.mark.parametrize("path", ["tenants/acme/", "organisations/physics/"])
def test_a_preview_is_for_those_who_may_make_the_change(cast: Cast, tree: dict[str, Organisation], path: str) -> None:
    assert cast.anna.patch(f"{path}?dry_run=true", {"name": "Other"}, If_Match="*").code == "role-missing"
    assert cast.olga.patch(f"{path}?dry_run=perhaps", {"name": "Other"}, If_Match="*").status == 400
