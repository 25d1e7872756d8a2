"""Room that others need comes from the spare members of elastic groups first, newest first, after a notice."""

from typing import Any

from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, placed, used
from tests.groups.elastic import Training, train

WHOLE: dict[str, Any] = {"core_request": 100, "memory_mib": GIB}


def grown(cast: Cast, machine: Machine, **facts: Any) -> Training:
    """Return a group that has grown into all that it may have."""
    group = train(cast, machine, **facts)
    for _ in range(4):
        group.step()
    assert "active" in group.states()
    return group


def by_priority(cast: Cast) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True)
    cast.pool.refresh_from_db()


def urgent(cast: Cast, **facts: Any) -> Claim:
    claim = ask(cast, name="urgent", priority=10, **{**WHOLE, **facts})
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "queued"
    return claim


def test_the_newest_spare_member_leaves_after_its_notice_and_is_not_queued_again(cast: Cast, machine: Machine) -> None:
    by_priority(cast)
    group = grown(cast, machine)
    assert group.states() == "active active active active"
    newest = Claim.objects.filter(group="train").order_by("-pk")[0]
    claim = urgent(cast)
    preemption.drive()
    assert group.states() == "active active active active!"
    newest.refresh_from_db()
    assert "its group goes on without it" in newest.reasons[0]["detail"]
    group.step()
    leaves = [member["leaves_at"] is not None for member in group.group().members]
    assert leaves == [False, False, False, True]
    assert group.states() == "active active active active!"  # the grace has not passed

    group.grace_is_over()
    group.step()
    group.step()
    claim.refresh_from_db()
    newest.refresh_from_db()
    assert (claim.state, newest.state) == ("active", "released")
    assert group.states() == "active active active"
    assert len(group.ranks()) == 3
    last = AuditEvent.objects.filter(object_id=str(newest.uid)).order_by("pk").last()
    assert last is not None
    assert last.action == "claim.shrink"
    for _ in range(3):
        group.step()
    assert group.states() == "active active active"
    assert_books_agree()


def test_a_group_shrinks_before_claims_of_lower_priority_go(cast: Cast, machine: Machine) -> None:
    by_priority(cast)
    group = grown(cast, machine, most=3, priority=5)
    low, _ = placed(cast, machine, priority=-5, **WHOLE)
    urgent(cast)
    preemption.drive()
    low.refresh_from_db()
    assert (low.preempt_at, group.states()) == (None, "active active active!")


def test_it_shrinks_to_its_least_number_and_then_goes_as_a_whole_back_to_the_queue(
    cast: Cast, machine: Machine
) -> None:
    by_priority(cast)
    group = grown(cast, machine)
    for number in (1, 2):
        urgent(cast)
        group.step()
        group.grace_is_over()
        group.step()
        group.step()
        assert group.states() == " ".join(["active"] * (4 - number))
    urgent(cast)
    group.step()
    assert group.states() == "active! active!"
    group.grace_is_over()
    group.step()
    group.step()
    assert group.states() == "queued queued"
    assert list(Claim.objects.live().filter(group="train").values_list("group_size", flat=True)) == [2, 2]
    # Both wait for two GPUs; one is free.
    assert group.group().members == []
    assert {claim.state for claim in Claim.objects.filter(name="urgent")} == {"active"}
    assert_books_agree()


def test_a_group_that_goes_takes_its_spare_members_with_it(cast: Cast, machine: Machine) -> None:
    by_priority(cast)
    group = grown(cast, machine)
    urgent(cast, gpu_count=3)
    group.step()
    assert group.states() == "active! active! active! active!"
    group.grace_is_over()
    group.step()
    group.step()
    assert group.states() == "queued queued"


def test_a_lender_gets_its_quota_back_from_spare_members_before_others_that_borrow(cast: Cast) -> None:
    for tenant in (cast.acme, cast.globex):
        change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        give(tenant, core_percent=200, memory_mib=None)
    machine = Machine("gpu1", cast.pool).stay_online()
    single, _ = placed(cast, machine, tenant=cast.globex, name="single", **WHOLE)
    group = grown(cast, machine, tenant=cast.globex, most=3)
    assert (group.states(), used(cast.globex)["core_percent"]) == ("active active active", 400)
    claim = ask(cast, tenant=cast.acme, when_over_quota="wait", **WHOLE)
    run_round(cast.pool)
    group.step()
    group.grace_is_over()
    group.step()
    group.step()
    claim.refresh_from_db()
    single.refresh_from_db()
    assert (claim.state, single.state, group.states()) == ("active", "active", "active active")
    assert_books_agree()


def test_previews_say_that_the_group_shrinks(cast: Cast, machine: Machine) -> None:
    by_priority(cast)
    grown(cast, machine)
    body = {"tenant": "acme", **WHOLE, "priority": 10}
    answer = cast.anna.post("claims/?dry_run=true", body)
    assert [victim["action"] for victim in answer.body["reclaims"]["victims"]] == ["shrink"]
