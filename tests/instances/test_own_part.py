"""The own part of a claim that opened its MIG instance, changed while it runs."""

from collections.abc import Iterator
from typing import Any

import pytest

from apps.instances import seats
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import failover
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, lose, used
from tests.instances.test_seats import GIB, OPEN, inside, opened, room
from tests.racing import race, without_constraint
from tests.scheduling.test_isolation import divided, hard


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return divided(cast)


@pytest.fixture
def opener(cast: Cast, machine: Machine) -> Claim:
    return opened(cast, machine)


def change(cast: Cast, opener: Claim, **values: Any) -> Any:
    return cast.max.patch(f"claims/{opener.uid}/", values)


def test_it_grows_at_once_and_the_agent_gets_it(cast: Cast, machine: Machine, opener: Claim) -> None:
    before = used(cast.acme)
    answer = change(cast, opener, own_core=20, own_memory_mib=20 * GIB)
    assert (answer.status, answer.body["own_core"], answer.body["core_request"]) == (200, 20, 42)
    assert room(opener) == (22, 71168 - 20 * GIB)
    (wanted,) = desired_state(machine.node).assignments
    assert (wanted.core_request, wanted.core_limit, wanted.memory_bytes >> 30) == (20, 42, 20)
    assert wanted.generation == 2
    machine.obey()
    assert used(cast.acme) == before, "the instance is charged, not its parts"
    assert_books_agree()


def test_it_shrinks_when_the_agent_has_confirmed_that_it_is_not_used(
    cast: Cast, machine: Machine, opener: Claim
) -> None:
    waits = inside(cast, opener, core=35, memory_mib=GIB) if change(cast, opener, own_core=7).status == 200 else None
    assert waits is not None
    assert change(cast, opener, own_memory_mib=8 * GIB).status == 200
    assert (waits.state, room(opener)) == ("queued", (30, 71168 - 16 * GIB)), "less is only wanted so far"
    machine.obey(memory_bytes=12 << 30)
    assert room(opener) == (35, 71168 - 16 * GIB), "its programs still use more memory than that"
    machine.obey()
    assert room(opener) == (35, 71168 - 8 * GIB)
    assert seats.drive() == 1
    assert room(opener) == (0, 71168 - 9 * GIB)
    assert_books_agree()


def test_what_claims_inside_have_is_not_taken_from_them(cast: Cast, machine: Machine, opener: Claim) -> None:
    inside(cast, opener, core=20)
    answer = change(cast, opener, own_core=23)
    assert (answer.status, answer.code) == (409, "no-room")
    assert answer.body["detail"] == (
        "The instance of claim unnamed has 10 % core and 44544 MiB left; 11 % and 0 MiB are needed beyond its own "
        "part. 1 claim in it has 20 % and 10240 MiB: release or shrink it, or ask for less."
    )
    opener.refresh_from_db()
    assert (opener.own_core, room(opener)[0]) == (12, 10)
    assert change(cast, opener, own_core=22).status == 200
    assert_books_agree()


def test_it_may_be_nothing_or_all_of_the_instance_but_not_more(cast: Cast, machine: Machine, opener: Claim) -> None:
    large = change(cast, opener, own_core=43)
    assert (large.status, large.code) == (422, "profile-too-small")
    assert change(cast, opener, own_core=0, own_memory_mib=71168).status == 200
    machine.obey()
    assert room(opener) == (42, 0)
    assert change(cast, opener, own_core=None).status == 400
    assert change(cast, opener, own_memory_mib=0).status == 400
    assert_books_agree()


def test_a_waiting_claim_changes_it_before_it_has_an_instance(cast: Cast, machine: Machine) -> None:
    claim = hard(cast, **OPEN)
    assert change(cast, claim, own_core=30).status == 200
    run_round(cast.pool)
    machine.obey()
    assert room(claim) == (12, 71168 - 16 * GIB)
    assert_books_agree()


def test_a_claim_that_opened_nothing_is_refused_with_what_to_do(cast: Cast, machine: Machine, opener: Claim) -> None:
    closed = opened(cast, machine, own_core=None, own_memory_mib=None)
    for claim in (closed, inside(cast, opener)):
        answer = change(cast, claim, own_core=1)
        assert (answer.status, answer.code) == (409, "fixed-by-profile")
        assert "make another claim with profile, own_core and own_memory_mib" in answer.body["detail"]


def test_the_size_of_the_instance_stays(cast: Cast, opener: Claim) -> None:
    answer = change(cast, opener, core_request=20, own_core=10)
    assert (answer.status, answer.code) == (409, "fixed-by-profile")


def test_the_change_is_audited_with_both_values(cast: Cast, opener: Claim) -> None:
    change(cast, opener, own_core=15)
    event = AuditEvent.objects.get(action="claim.resize")
    assert ((event.before or {})["own_core"], (event.after or {})["own_core"]) == (12, 15)


def test_a_release_or_a_lost_node_between_wish_and_confirmation_leaves_nothing_taken(
    cast: Cast, machine: Machine, opener: Claim
) -> None:
    change(cast, opener, own_core=2)
    release_claim(principal=SYSTEM, claim=opener)
    machine.obey()
    again = opened(cast, machine)
    change(cast, again, own_core=2)
    cast.olga.patch("pools/default/", {"failover_policy": "requeue", "failover_after_seconds": 30})
    lose(machine)
    assert failover.drive() == 1
    assert not Assignment.objects.live().exists()
    assert_books_agree()


def compete(cast: Cast) -> tuple[int, int]:
    """Let the claim that opened an instance and claims in it race for its last core; return both parts."""
    give_plenty(cast.acme)
    machine = divided(cast).stay_online()
    opener = opened(cast, machine)
    body = {"tenant": "acme", "instance_of": str(opener.uid), "core_request": 15, "memory_mib": GIB}
    # 12 + 30 are there: 12 + 2 × 15, or 27 + 15.
    racers = [lambda: cast.max.post("claims/", body)] * 4 + [lambda: change(cast, opener, own_core=27)] * 4
    race(racers)
    others = Assignment.objects.filter(claim__instance_of=opener.uid).values_list("taken_core", flat=True)
    return opener.assignments.get().taken_core, sum(others)


@pytest.mark.django_db(transaction=True)
def test_its_growth_and_claims_that_race_never_overfill_the_instance(real_cast: Cast) -> None:
    own, others = compete(real_cast)
    assert (own, others) in ((12, 30), (27, 15))
    assert_books_agree()


@pytest.fixture
def unguarded(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take room without the check, and without the constraint behind it."""

    def take(claim: Claim, *, core: int, memory_mib: int) -> bool:
        seats.give_back(claim, core=-core, memory_mib=-memory_mib)
        return True

    monkeypatch.setattr(seats, "_take", take)
    with without_constraint(Assignment, "scheduling_assignment_room_core_check"):
        yield


@pytest.mark.usefixtures("unguarded")
@pytest.mark.django_db(transaction=True)
def test_control_without_the_guards_the_race_overfills_it(real_cast: Cast) -> None:
    assert compete(real_cast) == (27, 60)
