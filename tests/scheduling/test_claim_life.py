"""A claim from request to release, with all interruptions."""

from typing import Any

import pytest

from apps.nodes.models import Gpu, Node
from apps.quotas.principals import SYSTEM
from apps.quotas.services.quotas import change_quota
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Assignment, Claim, Round
from apps.scheduling.services.claims.lifecycle import ImpossibleClaim, LimitBelowRequest, WrongState, release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.whatif.rounds import replay
from tests.cast import (
    GIB,
    MIB_BYTES,
    Cast,
    Machine,
    ask,
    assert_books_agree,
    give,
    give_plenty,
    lose,
    placed,
    seen,
    used,
)
from tests.scheduling.routes import dump_database


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def resize(claim: Claim, **values: Any) -> Claim:
    return resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(**values))


def release(claim: Claim) -> Claim:
    return release_claim(principal=SYSTEM, claim=claim)


def state_of(row: Claim | Assignment) -> str:
    row.refresh_from_db()
    return str(row.state)


def test_a_claim_goes_from_pending_to_released(cast: Cast, machine: Machine) -> None:
    claim = ask(cast)
    states = [claim.state]
    run_round(cast.pool)
    states.append(state_of(claim))
    machine.obey()
    states.append(state_of(claim))
    release(claim)
    states.append(state_of(claim))
    machine.obey()
    states.append(state_of(claim))
    assert states == ["pending", "assigned", "active", "releasing", "released"]
    assert [name for name, _ in claim.timeline] == states
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert machine.gpu().core_used == 0
    assert_books_agree()


def test_a_claim_charges_its_quota_at_once(cast: Cast, machine: Machine) -> None:
    give(cast.acme, vgpus=10, gpus=10)
    ask(cast, gpu_count=2, core_request=30, core_limit=60, memory_mib=100)
    assert used(cast.acme) == {"core_percent": 60, "memory_mib": 200, "vgpus": 2, "gpus": 0}
    ask(cast, gpu_count=2, core_request=100, memory_mib=100)
    assert used(cast.acme) == {"core_percent": 260, "memory_mib": 400, "vgpus": 4, "gpus": 2}


def test_a_claim_that_does_not_fit_now_is_queued_with_reasons_in_words_and_numbers(
    cast: Cast, machine: Machine
) -> None:
    for _ in range(4):
        ask(cast, core_request=80)
    run_round(cast.pool)
    claim = ask(cast, core_request=30)
    run_round(cast.pool)
    assert state_of(claim) == "queued"
    assert claim.reasons == [{"code": "gpu-core", "gpus": 4, "detail": "4 GPUs have less than 30 % core free"}]


def test_a_queued_claim_is_placed_once_there_is_room(cast: Cast, machine: Machine) -> None:
    holders = [placed(cast, machine, core_request=80)[0] for _ in range(4)]
    claim = ask(cast, core_request=30)
    run_round(cast.pool)
    release(holders[2])
    run_round(cast.pool)
    assert state_of(claim) == "queued"
    machine.obey()
    run_round(cast.pool)
    assert state_of(claim) == "assigned"
    assert claim.reasons == []


def test_what_can_never_fit_is_refused_and_charges_nothing(cast: Cast, machine: Machine) -> None:
    before = dump_database()
    for asked in ({"memory_mib": 25 * GIB}, {"gpu_count": 5}, {"gpu_model": "H100"}):
        with pytest.raises(ImpossibleClaim):
            ask(cast, **asked)
    assert dump_database() == before


def test_a_pool_without_gpus_lets_claims_wait(cast: Cast) -> None:
    give_plenty(cast.acme)
    claim = ask(cast, memory_mib=10**6)
    run_round(cast.pool)
    assert state_of(claim) == "queued"
    assert claim.reasons[0]["code"] == "no-gpus"


def test_higher_priority_goes_first_then_age(cast: Cast, machine: Machine) -> None:
    first, second, urgent = (ask(cast, core_request=60, gpu_count=4, priority=level) for level in (0, 0, 5))
    run_round(cast.pool)
    assert [state_of(claim) for claim in (urgent, first, second)] == ["assigned", "queued", "queued"]
    release(urgent)
    machine.obey()
    run_round(cast.pool)
    assert [state_of(claim) for claim in (first, second)] == ["assigned", "queued"]


@pytest.mark.parametrize("trouble", ["cordoned", "lost", "gone"])
def test_a_node_that_is_cordoned_lost_or_without_the_gpu_is_passed_over(
    cast: Cast, machine: Machine, trouble: str
) -> None:
    other = Machine("gpu2", cast.pool, gpus=1)
    if trouble == "cordoned":
        Node.objects.filter(name="gpu1").update(cordoned=True)
    elif trouble == "lost":
        lose(machine)
    else:
        Gpu.objects.filter(node=machine.node).update(present=False)
    claims = [ask(cast, core_request=60) for _ in range(2)]
    run_round(cast.pool)
    assert claims[0].assignments.get().gpu == other.gpu()
    assert state_of(claims[1]) == "queued"
    assert {"code": "node-unavailable", "gpus": 4}.items() <= claims[1].reasons[0].items()


def test_a_round_is_recorded_and_its_decisions_follow_from_what_it_saw(cast: Cast, machine: Machine) -> None:
    for core in (60, 60, 30, 80, 100, 100):
        ask(cast, core_request=core)
    ask(cast, core_request=10, gpu_count=4)
    done = run_round(cast.pool)
    assert done is not None
    done.refresh_from_db()
    assert done.considered == len(done.queue) == len(done.decisions) == 7
    assert [row["claim"] for row in done.queue] == [decision["claim"] for decision in done.decisions]
    assert done.placed == sum("gpus" in decision for decision in done.decisions) == 5
    compared = replay(done)
    assert [item.claim for item in compared] == [row["claim"] for row in done.queue]
    assert all(item.agrees for item in compared)


def test_a_round_that_changes_nothing_is_not_recorded(cast: Cast, machine: Machine) -> None:
    ask(cast, core_request=100, gpu_count=4)
    ask(cast)
    assert run_round(cast.pool) is not None
    assert run_round(cast.pool) is None
    assert Round.objects.count() == 1


def test_over_quota_a_claim_is_refused_unless_it_may_wait(cast: Cast) -> None:
    give(cast.acme, core_percent=50, memory_mib=None)
    Machine("gpu1", cast.pool)
    first = ask(cast, core_request=40)
    with pytest.raises(QuotaExceeded):
        ask(cast, core_request=40)
    waiting = ask(cast, core_request=40, when_over_quota="wait")
    assert used(cast.acme)["core_percent"] == 40
    run_round(cast.pool)
    assert (state_of(waiting), waiting.reasons[0]["code"]) == ("queued", "quota-exceeded")
    assert not any(waiting.charged.values())
    release(first)
    run_round(cast.pool)
    assert used(cast.acme)["core_percent"] == 40  # the release is not confirmed
    first.refresh_from_db()
    assert_books_agree()


def test_a_claim_that_waited_for_quota_is_charged_when_it_is_placed(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=10, memory_mib=None)["core_percent"]
    machine = Machine("gpu1", cast.pool)
    claim = ask(cast, core_request=40, when_over_quota="wait")
    change_quota(principal=SYSTEM, quota=quota, hard=40)
    run_round(cast.pool)
    assert state_of(claim) == "assigned"
    assert used(cast.acme) == {"core_percent": 40, "memory_mib": 8 * GIB}
    release(claim)
    machine.obey()
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert_books_agree()


def test_a_claim_that_is_released_before_it_is_placed_is_released_at_once(cast: Cast, machine: Machine) -> None:
    claim = ask(cast)
    assert state_of(release(claim)) == "released"
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert run_round(cast.pool) is None


def test_a_release_may_be_repeated(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    release(claim)
    after = dump_database()
    release(claim)
    assert dump_database() == after


def test_growing_is_charged_at_once(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    resize(claim, core_request=70, memory_mib=16 * GIB)
    assert used(cast.acme) == {"core_percent": 70, "memory_mib": 16 * GIB}
    assert (machine.gpu().core_used, machine.gpu().memory_used_mib) == (70, 16 * GIB)
    assignment.refresh_from_db()
    assert (assignment.generation, assignment.observed_generation, assignment.state) == (2, 1, "in_force")
    assert_books_agree()


@pytest.mark.parametrize("more", [{"core_request": 80}, {"memory_mib": 20 * GIB}])
def test_growing_without_room_on_the_gpu_changes_nothing(cast: Cast, machine: Machine, more: dict[str, int]) -> None:
    claim, _ = placed(cast, machine)
    placed(cast, machine)
    before = dump_database()
    with pytest.raises(NoRoom) as refused:
        resize(claim, **more)
    assert refused.value.facts == {"gpu_uuid": machine.gpu().uuid, "core_free": 40, "memory_free_mib": 8 * GIB}
    assert dump_database() == before


def test_growing_above_the_quota_changes_nothing(cast: Cast) -> None:
    give(cast.acme, core_percent=50, memory_mib=None)
    claim, _ = placed(cast, Machine("gpu1", cast.pool))
    before = dump_database()
    with pytest.raises(QuotaExceeded):
        resize(claim, core_request=51)
    assert dump_database() == before


def test_the_limit_costs_nothing_and_follows_the_request_unless_it_was_set(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    assert resize(claim, core_request=40).core_limit == 40
    assert resize(claim, core_limit=90).core_limit == 90
    assert resize(claim, core_request=50).core_limit == 90
    assert used(cast.acme)["core_percent"] == 50
    with pytest.raises(LimitBelowRequest):
        resize(claim, core_limit=49)


def test_shrinking_is_given_back_only_when_the_agent_has_confirmed_it(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    resize(claim, core_request=10, memory_mib=2 * GIB)
    assert used(cast.acme) == {"core_percent": 30, "memory_mib": 8 * GIB}
    machine.say(seen(assignment, generation=1))
    assert machine.gpu().core_used == 30
    machine.obey()
    assert used(cast.acme) == {"core_percent": 10, "memory_mib": 2 * GIB}
    assert (machine.gpu().core_used, machine.gpu().memory_used_mib) == (10, 2 * GIB)
    assert_books_agree()


def test_memory_is_given_back_only_when_it_is_measured_to_be_free(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    resize(claim, core_request=10, memory_mib=2 * GIB)
    machine.obey(memory_bytes=2 * GIB * MIB_BYTES + 1)
    assert (state_of(assignment), state_of(claim)) == ("over_limit", "active")
    assert used(cast.acme) == {"core_percent": 10, "memory_mib": 8 * GIB}
    machine.obey(memory_bytes=2 * GIB * MIB_BYTES)
    assert state_of(assignment) == "in_force"
    assert used(cast.acme) == {"core_percent": 10, "memory_mib": 2 * GIB}
    assert_books_agree()


def test_growing_again_before_a_shrink_is_confirmed_is_charged_no_second_time(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    resize(claim, memory_mib=2 * GIB)
    resize(claim, memory_mib=6 * GIB)
    assert used(cast.acme)["memory_mib"] == 8 * GIB
    machine.obey()
    assert used(cast.acme)["memory_mib"] == 6 * GIB
    assert_books_agree()


def test_what_does_not_grow_needs_no_room_even_where_the_gpu_is_away(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    Gpu.objects.update(present=False)
    assert resize(claim, core_limit=80).core_limit == 80
    assert resize(claim, memory_mib=GIB).memory_mib == GIB
    with pytest.raises(NoRoom):
        resize(claim, core_request=31)


def test_a_claim_that_waits_is_resized_in_its_place(cast: Cast, machine: Machine) -> None:
    claim = ask(cast)
    resize(claim, core_request=10, memory_mib=GIB)
    assert used(cast.acme) == {"core_percent": 10, "memory_mib": GIB}
    run_round(cast.pool)
    assert claim.assignments.get().held_core == 10


def test_a_claim_that_ends_is_not_resized(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    release(claim)
    with pytest.raises(WrongState):
        resize(claim, core_request=10)


def test_a_claim_on_two_gpus_is_active_when_both_are_in_force(cast: Cast, machine: Machine) -> None:
    claim = ask(cast, gpu_count=2)
    run_round(cast.pool)
    one, two = claim.assignments.order_by("pk")
    machine.say(seen(one))
    assert state_of(claim) == "assigned"
    machine.say(seen(one), seen(two))
    assert state_of(claim) == "active"
    release(claim)
    machine.say(seen(one, "released"))
    assert state_of(claim) == "releasing"
    assert used(cast.acme)["core_percent"] == 30
    machine.say(seen(two, "released"))
    assert state_of(claim) == "released"
    assert_books_agree()
