"""Elastic groups start with their least number, grow into free room, and end with their first claim."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from apps.groups import sizing
from apps.quotas.principals import SYSTEM
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import GroupExists, release_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, placed, used
from tests.groups.elastic import train

WHOLE: dict[str, Any] = {"core_request": 100, "memory_mib": GIB}


def test_a_group_starts_with_its_least_number_together_and_grows_into_what_is_free(
    cast: Cast, machine: Machine
) -> None:
    other, _ = placed(cast, machine, tenant=cast.globex, **WHOLE)
    group = train(cast, machine)
    assert group.states() == "pending pending"
    group.step()
    assert group.states() == "active active"
    assert (group.group().generation, len(group.ranks())) == (1, 2)
    group.step()
    assert group.states() == "active active active"
    group.step()
    assert group.states() == "active active active"  # three GPUs are free, not four

    release_claim(principal=SYSTEM, claim=other)
    machine.obey()
    for _ in range(3):
        group.step()
    assert group.states() == "active active active active"
    assert group.ranks() == sorted(group.ranks())
    assert list(Claim.objects.filter(group="train").order_by("pk").values_list("group_size", flat=True)) == [2, 2, 1, 1]
    assert_books_agree()


def test_a_group_does_not_start_below_its_least_number(cast: Cast, machine: Machine) -> None:
    for _ in range(3):
        placed(cast, machine, tenant=cast.globex, **WHOLE)
    group = train(cast, machine)
    for _ in range(3):
        group.step()
    assert group.states() == "queued queued"
    assert group.group().members == []


def test_it_does_not_grow_while_another_claim_waits_for_gpus_and_does_beside_one_that_waits_for_quota(
    cast: Cast, machine: Machine
) -> None:
    group = train(cast, machine)
    group.step()
    poor = ask(cast, tenant=cast.globex, core_request=100, memory_mib=GIB, gpu_count=4)
    for _ in range(3):
        group.step()
    poor.refresh_from_db()
    assert (group.states(), poor.state) == ("active active", "queued")
    assert poor.reasons[0]["code"] not in sizing.NOT_FOR_GPUS

    Claim.objects.filter(pk=poor.pk).update(reasons=[{"code": "quota-exceeded", "gpus": 0, "detail": ""}])
    sizing.drive()
    assert group.states() == "active active pending pending"


def test_the_whole_start_is_charged_or_nothing(cast: Cast) -> None:
    give(cast.acme, core_percent=300, memory_mib=None)
    Machine("gpu1", cast.pool).stay_online()
    with pytest.raises(QuotaExceeded), transaction.atomic():
        train(cast, least=4)
    assert not Claim.objects.exists()
    assert used(cast.acme)["core_percent"] == 0


def test_it_grows_only_within_its_quota(cast: Cast) -> None:
    give(cast.acme, core_percent=300, memory_mib=None)
    group = train(cast, Machine("gpu1", cast.pool).stay_online())
    for _ in range(4):
        group.step()
    assert group.states() == "active active active"
    assert used(cast.acme)["core_percent"] == 300
    assert_books_agree()


def test_the_group_ends_with_its_first_claim_and_grows_again_without_another_one(cast: Cast, machine: Machine) -> None:
    group = train(cast, machine, most=3)
    for _ in range(3):
        group.step()
    second = Claim.objects.filter(group="train").order_by("pk")[1]
    release_claim(principal=SYSTEM, claim=second)
    machine.obey()
    sizing.drive()
    assert len(group.ranks()) == 2
    for _ in range(3):
        group.step()
    assert group.states() == "active active active"
    assert second.pk not in group.ranks()
    # The member that joined later is now one of those with which the group runs.
    assert list(Claim.objects.live().order_by("pk").values_list("group_size", flat=True)) == [2, 2, 1]

    release_claim(principal=SYSTEM, claim=group.first)
    for _ in range(3):
        group.step()
    assert (group.states(), group.ranks()) == ("", [])
    assert used(cast.acme)["core_percent"] == 0
    generation = group.group().generation
    sizing.drive()
    assert group.group().generation == generation
    assert_books_agree()


def test_a_member_that_finds_no_room_after_all_is_withdrawn(cast: Cast, machine: Machine) -> None:
    group = train(cast, machine, most=3)
    group.step()
    sizing.drive()
    assert group.states() == "active active pending"
    late = Claim.objects.filter(group="train").order_by("-pk").first()
    assert late is not None
    # Something took its GPU before the round.
    Claim.objects.filter(pk=late.pk, state="pending").update(
        state="queued", timeline=[["pending", (timezone.now() - timedelta(seconds=11)).isoformat()]]
    )
    sizing.drive()
    late.refresh_from_db()
    assert late.state == "released"
    assert "no room" in late.reasons[0]["detail"]


def test_a_base_member_that_is_gone_is_replaced_alone_while_the_others_run(cast: Cast, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool, gpus=1).stay_online()
    group = train(cast, machine, other, least=5, most=5)
    group.step()
    assert group.states() == " ".join(["active"] * 5)
    third = Claim.objects.filter(group="train").order_by("pk")[2]
    release_claim(principal=SYSTEM, claim=third)
    for _ in range(3):
        group.step()
    assert group.states() == " ".join(["active"] * 5)


def test_names_of_living_groups_are_one_each(cast: Cast, machine: Machine) -> None:
    group = train(cast, machine)
    with pytest.raises(GroupExists), transaction.atomic():
        train(cast, machine)
    with pytest.raises(GroupExists), transaction.atomic():
        ask(cast, group="train", group_size=2)
    train(cast, machine, tenant=cast.globex)
    release_claim(principal=SYSTEM, claim=group.first)
    for _ in range(2):
        group.step()
    train(cast, machine)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"group_size": 1}, "group_size"),
        ({"group_size": 3, "group_most": 2}, "group_most"),
        ({"group_most": 4}, "group_size"),
        ({"group_size": 1, "group_most": 257}, "group_most"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(cast: Cast, asked: dict[str, int], field: str) -> None:
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100, "group": "train", **asked}
    answer = cast.max.post("claims/", body)
    assert (answer.status, list(answer.body["errors"])) == (400, [field])


def test_the_api_makes_a_group_by_one_request_and_shows_it(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", **WHOLE, "group": "train", "group_size": 1, "group_most": 2}
    preview = cast.max.post("claims/?dry_run=true", {**body, "group_size": 2})
    assert (preview.status, len(preview.body["gpus"]), Claim.objects.count()) == (200, 2, 0)
    made = cast.max.post("claims/", body)
    assert made.status == 201, made.body
    assert made.body["group_uid"] == made.body["uid"]
    shown = cast.max.get("groups/train/")
    assert (shown.body["state"], shown.body["members"], shown.headers["ETag"]) == ("waiting", [], '"0"')
    assert cast.max.get(f"groups/{made.body['uid']}/").body == shown.body
    assert cast.gus.get("groups/train/").status == 404
    assert cast.max.get("groups/train/", If_None_Match='"0"').status == 304
    assert [row["name"] for row in cast.vera.get("groups/?live=true").body["results"]] == ["train"]


def test_a_name_in_two_tenants_is_not_enough_for_who_sees_both(cast: Cast, machine: Machine) -> None:
    train(cast, machine)
    train(cast, machine, tenant=cast.globex)
    assert cast.olga.get("groups/train/").code == "name-of-several"
    uid = cast.olga.get("groups/?tenant=globex").body["results"][0]["uid"]
    assert cast.olga.get(f"groups/{uid}/").body["tenant"] == "globex"
    assert cast.gus.get("groups/train/").body["tenant"] == "globex"
