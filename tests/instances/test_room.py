"""Proposals to place claims again: what they say, who accepts them, and what happens then."""

import pytest
from django.test import Client

from apps.instances import room, seats
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim, Proposal
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, used
from tests.instances.test_seats import inside, opened
from tests.scheduling.test_isolation import divided, hard


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    give_plenty(cast.globex)
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="propose")
    cast.pool.refresh_from_db()
    return divided(cast)


def settle(cast: Cast, machine: Machine) -> None:
    run_round(cast.pool)
    machine.obey()


def scattered(cast: Cast, machine: Machine) -> Claim:
    """Return a claim whose 1g at slice 3 leaves no place for a 4g: those at 4 to 6 have ended."""
    claims = [hard(cast, profile="1g.18gb", name=f"small-{number}") for number in range(4)]
    settle(cast, machine)
    for claim in claims[:3]:
        claim.refresh_from_db()
        release_claim(principal=SYSTEM, claim=claim)
    settle(cast, machine)
    last = claims[3]
    last.refresh_from_db()
    assert (last.state, place(last)) == ("active", 3)
    return last


def place(claim: Claim) -> int | None:
    return claim.assignments.live().get().mig_start


def states() -> list[str]:
    return [f"{row.claim.name} {row.state}" for row in Proposal.objects.select_related("claim").order_by("pk")]


def test_a_claim_is_proposed_to_make_room_for_one_that_waits_and_both_run_once_it_is_accepted(
    cast: Cast, machine: Machine
) -> None:
    small = scattered(cast, machine)
    large = hard(cast, profile="4g.71gb", name="large")
    settle(cast, machine)
    assert room.run(cast.pool) == 1
    assert room.run(cast.pool) == 0
    [found] = cast.max.get("proposals/?kind=requeue").body["results"]
    assert (found["claim_name"], found["before"]["mig_start"], found["after"]["mig_start"]) == ("small-3", 3, 6)
    assert "a claim waits for one" in found["explanation"]
    before = used(cast.acme)
    assert cast.max.post(f"proposals/{found['uid']}/accept/").status == 200
    small.refresh_from_db()
    assert small.state == "releasing"
    assert used(cast.acme) == before
    for _ in range(2):
        machine.obey()
        run_round(cast.pool)
    machine.obey()
    for claim, start in ((small, 6), (large, 0)):
        claim.refresh_from_db()
        assert (claim.state, place(claim)) == ("active", start)
    assert used(cast.acme) == before
    assert_books_agree()
    assert room.run(cast.pool) == 0


def test_while_no_claim_waits_room_is_made_for_the_largest_profile_without_a_place(
    cast: Cast, machine: Machine
) -> None:
    scattered(cast, machine)
    room.run(cast.pool)
    proposal = Proposal.objects.get()
    assert "instance of 4g.71gb" in proposal.explanation
    assert "one could have it" in proposal.explanation


def test_a_stranger_may_not_accept_and_learns_nothing_of_who_waits(cast: Cast, machine: Machine) -> None:
    scattered(cast, machine)
    hard(cast, profile="4g.71gb", name="secret")
    settle(cast, machine)
    room.run(cast.pool)
    proposal = Proposal.objects.get()
    assert "secret" not in proposal.explanation
    assert cast.gus.post(f"proposals/{proposal.uid}/accept/").status == 404
    assert proposal.claim.state == "active"


def test_a_proposal_that_is_no_longer_found_expires(cast: Cast, machine: Machine) -> None:
    scattered(cast, machine)
    large = hard(cast, profile="4g.71gb", name="large")
    settle(cast, machine)
    room.run(cast.pool)
    release_claim(principal=SYSTEM, claim=large)
    release_claim(principal=SYSTEM, claim=Proposal.objects.get().claim)
    room.run(cast.pool)
    assert states() == ["small-3 expired"]


def test_a_dismissed_claim_rests(cast: Cast, machine: Machine) -> None:
    scattered(cast, machine)
    room.run(cast.pool)
    uid = Proposal.objects.get().uid
    assert cast.max.post(f"proposals/{uid}/dismiss/", {"words": "it trains"}).status == 200
    room.run(cast.pool)
    assert states() == ["small-3 dismissed"]


def test_nothing_is_placed_again_without_consent_even_in_a_pool_that_applies(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="apply")
    small = scattered(cast, machine)
    room.drive()
    small.refresh_from_db()
    assert (states(), small.state) == (["small-3 proposed"], "active")


def test_a_pool_that_is_not_rebalanced_has_no_proposals(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="off")
    scattered(cast, machine)
    room.drive()
    assert states() == []


def test_a_claim_that_is_released_meanwhile_is_not_placed_again(cast: Cast, machine: Machine) -> None:
    small = scattered(cast, machine)
    room.run(cast.pool)
    release_claim(principal=SYSTEM, claim=small)
    answer = cast.max.post(f"proposals/{Proposal.objects.get().uid}/accept/")
    assert (answer.status, answer.code) == (409, "wrong-state")
    small.refresh_from_db()
    assert (small.state, small.preempt_at) == ("releasing", None)


def test_claims_inside_go_back_to_the_queue_with_the_instance_and_come_with_it(cast: Cast, machine: Machine) -> None:
    fillers = [hard(cast, profile="1g.18gb") for _ in range(3)]
    settle(cast, machine)
    opener = opened(cast, machine, name="team", profile="1g.18gb", own_core=4, own_memory_mib=4096)
    member = inside(cast, opener, core=5, memory_mib=4096)
    for claim in fillers:
        claim.refresh_from_db()
        release_claim(principal=SYSTEM, claim=claim)
    settle(cast, machine)
    room.run(cast.pool)
    proposal = Proposal.objects.get(claim=opener)
    assert "1 claim in its instance would go with it" in proposal.explanation
    assert cast.max.post(f"proposals/{proposal.uid}/accept/").status == 200
    for _ in range(3):
        seats.drive()
        settle(cast, machine)
    for claim in (opener, member):
        claim.refresh_from_db()
        assert (claim.state, claim.assignments.live().get().gpu.index) == ("active", 0)
    assert place(opener) == 6
    assert_books_agree()


def test_the_page_says_what_happens_to_the_claim(cast: Cast, machine: Machine) -> None:
    scattered(cast, machine)
    room.run(cast.pool)
    client = Client()
    client.force_login(User.objects.get(username="max"))
    text = " ".join(client.get("/proposals/").content.decode().split())
    assert "place again: first memory slice" in text
    assert "Its programs are stopped" in text
