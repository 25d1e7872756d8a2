"""The queue's rules in rounds, on the database, to the last claim."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from apps.quotas.models import Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.scheduling.models import Claim, Round
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles import rounds as scheduling_rounds
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.queue import get_snapshot
from apps.scheduling.services.cycles.rounds import rounds, run_round
from apps.whatif.rounds import replay
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed, used

SMALL: dict[str, Any] = {"core_request": 10, "memory_mib": GIB}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create one GPU of 24 GiB, and no limiting quota."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool, gpus=1)


def states(*claims: Claim) -> list[str]:
    rows: QuerySet[Claim] = Claim.objects.filter(pk__in=[claim.pk for claim in claims])
    return [row.state for row in rows.order_by("pk")]


def reason(claim: Claim) -> tuple[str, str]:
    claim.refresh_from_db()
    first: dict[str, Any] = claim.reasons[0]
    return first["code"], first["detail"]


def go_on(cache: PoolCache) -> None:
    """Run rounds of a scheduler that keeps its snapshot."""
    for _ in rounds(cache, fence=lambda: None):
        pass


def replays_agree() -> None:
    records = Round.objects.select_related("base").order_by("pk")
    compared = [item for record in records for item in replay(record)]
    assert compared
    assert [item for item in compared if not item.agrees] == []


def test_who_holds_least_for_their_weight_goes_first(cast: Cast, machine: Machine) -> None:
    Tenant.objects.filter(pk=cast.globex.pk).update(weight=4)
    mine = [ask(cast, core_request=20, memory_mib=GIB) for _ in range(5)]
    theirs = [ask(cast, core_request=20, memory_mib=GIB, tenant=cast.globex) for _ in range(5)]
    run_round(cast.pool)
    assert states(*mine).count("assigned") == 1
    assert states(*theirs).count("assigned") == 4


def test_what_is_held_already_counts(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=80, memory_mib=GIB)
    mine, theirs = ask(cast, core_request=20), ask(cast, core_request=20, tenant=cast.globex)
    run_round(cast.pool)
    assert states(theirs, mine) == ["queued", "assigned"]


def test_who_has_waited_longer_than_the_pools_patience_goes_first(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=50, memory_mib=GIB)
    theirs = ask(cast, core_request=40, memory_mib=GIB, tenant=cast.globex)
    mine = ask(cast, core_request=40, memory_mib=GIB)
    assert list(get_snapshot(cast.pool).positions) == [str(theirs.uid), str(mine.uid)]
    hours = timezone.now() - timedelta(hours=5)
    Claim.objects.filter(pk=mine.pk).update(created_at=hours, start_at=timezone.now())
    assert list(get_snapshot(cast.pool).positions) == [str(theirs.uid), str(mine.uid)]
    Claim.objects.filter(pk=mine.pk).update(start_at=None)
    assert list(get_snapshot(cast.pool).positions) == [str(mine.uid), str(theirs.uid)]
    run_round(cast.pool)
    assert states(theirs, mine) == ["queued", "assigned"]


def test_a_claim_is_not_placed_before_its_time_and_says_so(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", **SMALL, "start_at": (timezone.now() + timedelta(hours=1)).isoformat()}
    claim = Claim.objects.get(uid=cast.max.post("claims/", body).body["uid"])
    cache = PoolCache(cast.pool)
    go_on(cache)
    assert reason(claim)[0] == "not-before"
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert (document["queue_position"], document["estimate"]["basis"]) == (None, "time-limits")
    assert document["start_at"] == document["estimate"]["at"]
    now = timezone.now().timestamp()
    assert not cache.has_due_claims(now=now)
    assert cache.has_due_claims(now=now + 3601)
    cache.candidates(now=now + 3601)
    assert not cache.has_due_claims(now=now + 3601)


def test_what_waits_for_its_own_time_is_not_sent_to_another_pool(cast: Cast, machine: Machine) -> None:
    Machine("gpu2", tenants.create_pool(principal=SYSTEM, name="other"), gpus=1)
    claim = ask(cast, **SMALL, start_at=timezone.now() + timedelta(hours=1))
    run_round(cast.pool)
    assert cast.max.get(f"claims/{claim.uid}/").body["suggestions"] == []


def test_a_claim_whose_time_has_come_is_placed(cast: Cast, machine: Machine) -> None:
    claim = ask(cast, **SMALL, start_at=timezone.now() + timedelta(hours=1))
    run_round(cast.pool)
    Claim.objects.filter(pk=claim.pk).update(start_at=timezone.now() - timedelta(seconds=1))
    run_round(cast.pool)
    assert states(claim) == ["assigned"]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"group": "train"}, "group_size"),
        ({"group_size": 2}, "group_size"),
        ({"group": "train", "group_size": 1}, "group_size"),
        ({"group": "a b", "group_size": 2}, "group"),
        ({"start_at": "2999-01-01T00:00:00Z"}, "start_at"),
    ],
)
def test_half_a_group_and_the_far_future_are_refused(cast: Cast, machine: Machine, fields: Any, wrong: str) -> None:
    answer = cast.max.post("claims/", {"tenant": "acme", **SMALL, **fields})
    assert (answer.status, set(answer.body["errors"])) == (400, {wrong})


def test_a_gang_waits_until_all_of_it_is_there_and_is_placed_as_one(cast: Cast, machine: Machine) -> None:
    cache = PoolCache(cast.pool)
    gang = []
    for number in range(3):
        gang.append(ask(cast, core_request=30, memory_mib=GIB, group="train", group_size=3))
        cache.refresh_claims({gang[-1].pk})
        go_on(cache)
        if number < 2:
            assert reason(gang[0]) == (
                "group-incomplete",
                f"{number + 1} of the 3 claims of group train have arrived; they are placed together",
            )
    assert states(*gang) == ["assigned"] * 3
    assert_books_agree()
    replays_agree()


def test_a_gang_that_does_not_fit_takes_nothing_and_says_how_much_of_it_would(cast: Cast, machine: Machine) -> None:
    runs, _ = placed(cast, machine, core_request=30, memory_mib=GIB)
    gang = [ask(cast, core_request=40, memory_mib=GIB, group="train", group_size=2) for _ in range(2)]
    run_round(cast.pool)
    assert states(*gang) == ["queued"] * 2
    assert reason(gang[0])[1].startswith("1 of the 2 claims of group train fit together now")
    assert machine.gpu().core_used == 30
    replays_agree()
    release_claim(principal=SYSTEM, claim=runs)
    machine.obey()
    run_round(cast.pool)
    assert states(*gang) == ["assigned"] * 2


def test_of_a_gang_that_the_quota_stops_nothing_is_placed_or_charged(cast: Cast) -> None:
    give(cast.acme, core_percent=50, memory_mib=None)
    machine = Machine("gpu1", cast.pool, gpus=1)
    facts: dict[str, Any] = {
        "core_request": 30,
        "memory_mib": GIB,
        "group": "train",
        "group_size": 2,
        "when_over_quota": "wait",
    }
    gang = [ask(cast, **facts) for _ in range(2)]
    run_round(cast.pool)
    assert states(*gang) == ["queued"] * 2
    assert reason(gang[1])[0] == "quota-exceeded"
    # The first was charged when it was made, like any claim.
    assert used(cast.acme)["core_percent"] == 30
    assert machine.gpu().core_used == 0
    assert_books_agree()


def test_of_a_gang_that_loses_a_race_nothing_is_placed(cast: Cast, machine: Machine) -> None:
    gang = [ask(cast, core_request=30, memory_mib=GIB, group="train", group_size=2) for _ in range(2)]
    cache = PoolCache(cast.pool)
    Claim.objects.filter(pk=gang[1].pk).update(version=7)
    this = rounds(cache, fence=lambda: None)
    next(this)
    assert states(*gang) == ["pending"] * 2
    assert machine.gpu().core_used == 0
    for _ in this:
        pass
    assert states(*gang) == ["assigned"] * 2
    assert_books_agree()


def test_a_later_claim_passes_the_head_only_where_it_does_not_delay_it(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=50, memory_mib=GIB, time_limit_seconds=600)
    head = ask(cast, core_request=80, memory_mib=GIB)
    long = ask(cast, core_request=40, memory_mib=GIB)
    small = ask(cast, core_request=20, memory_mib=GIB)
    run_round(cast.pool)
    assert states(head, long, small) == ["queued", "queued", "assigned"]
    assert reason(long)[0] == "kept-for-earlier"
    short = ask(cast, core_request=30, memory_mib=GIB, time_limit_seconds=300)
    run_round(cast.pool)
    assert states(head, long, short) == ["queued", "queued", "assigned"]
    replays_agree()


def test_what_was_kept_is_given_to_the_head_and_then_to_the_rest(cast: Cast, machine: Machine) -> None:
    runs, _ = placed(cast, machine, core_request=50, memory_mib=GIB, time_limit_seconds=600)
    head, behind = ask(cast, core_request=60, memory_mib=GIB), ask(cast, core_request=45, memory_mib=GIB)
    cache = PoolCache(cast.pool)
    go_on(cache)
    assert states(head, behind) == ["queued", "queued"]
    release_claim(principal=SYSTEM, claim=head)
    cache.refresh_claims({head.pk})
    go_on(cache)
    assert states(behind) == ["assigned"]
    assert runs.state == "active"


def test_who_is_kept_out_is_asked_again_when_other_room_is_freed(cast: Cast) -> None:
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool, gpus=2)
    placed(cast, machine, core_request=65, memory_mib=GIB, time_limit_seconds=600)
    placed(cast, machine, core_request=60, memory_mib=GIB)
    leaver, left = placed(cast, machine, core_request=40, memory_mib=GIB)
    head, long = ask(cast, core_request=80, memory_mib=GIB), ask(cast, core_request=30, memory_mib=GIB)
    cache = PoolCache(cast.pool)
    go_on(cache)
    assert states(head, long) == ["queued", "queued"]
    assert reason(long)[0] == "kept-for-earlier"
    release_claim(principal=SYSTEM, claim=leaver)
    machine.obey()
    cache.refresh_devices(gpus={left.gpu_id})
    go_on(cache)
    assert states(head, long) == ["queued", "assigned"]


def test_without_time_limits_nothing_is_kept(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=50, memory_mib=GIB)
    head, behind = ask(cast, core_request=80, memory_mib=GIB), ask(cast, core_request=40, memory_mib=GIB)
    run_round(cast.pool)
    assert states(head, behind) == ["queued", "assigned"]


def test_whoever_is_behind_many_that_do_not_fit_has_a_turn(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling_rounds, "BATCH", 2)
    holder, _ = placed(cast, machine, core_request=60, memory_mib=GIB)
    large = [ask(cast, core_request=core, memory_mib=GIB) for core in range(60, 90)]
    last = ask(cast, core_request=50, memory_mib=GIB)
    run_round(cast.pool)
    assert set(states(*large, last)) == {"queued"}
    resize_claim(principal=SYSTEM, claim=holder, changes=ClaimChanges(core_request=45))
    machine.obey()
    go_on(PoolCache(cast.pool))  # a new leader remembers no refusals
    assert set(states(*large)) == {"queued"}
    assert states(last) == ["assigned"]


def test_a_more_urgent_claim_passes_by_right(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=50, memory_mib=GIB, time_limit_seconds=600)
    head = ask(cast, core_request=80, memory_mib=GIB)
    cache = PoolCache(cast.pool)
    go_on(cache)
    urgent = ask(cast, core_request=50, memory_mib=GIB, priority=1)
    cache.refresh_claims({urgent.pk})
    go_on(cache)
    assert states(head, urgent) == ["queued", "assigned"]


def test_a_preview_of_a_claim_that_would_not_be_asked_says_why(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", **SMALL, "group": "train", "group_size": 2}
    shown = cast.max.post("claims/?dry_run=true", body).body
    assert (shown["state"], shown["reasons"][0]["code"]) == ("queued", "group-incomplete")
    ask(cast, **SMALL, group="train", group_size=2)
    assert cast.max.post("claims/?dry_run=true", body).body["state"] == "assigned"


def test_two_sizes_of_one_group_are_refused(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", **SMALL, "group": "train"}
    assert cast.max.post("claims/", {**body, "name": "one", "group_size": 3}).status == 201
    refused = cast.max.post("claims/", {**body, "name": "two", "group_size": 4})
    assert (refused.code, refused.body["group_size"], refused.body["requested"]) == ("group-of-other-size", 3, 4)
    # Another tenant's group of that name is another group.
    other = {**body, "tenant": "globex", "name": "three", "group_size": 4}
    assert cast.olga.post("claims/", other).status == 201
