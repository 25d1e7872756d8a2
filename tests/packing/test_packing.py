"""Packing by measured launches: profiles, proposals, moves, and the way back."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from apps.nodes.models import Node, Sample
from apps.packing import measuring, packing
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim, PackProfile, Proposal
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing.proposals import accept, dismiss
from gpucloud_cli.commands import describe
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, placed
from tests.measurements import keep
from tests.scheduling.clock import Clock

SECONDS = 310


def measure(clock: Clock, rates: dict[str, tuple[float, float]], *, seconds: int = SECONDS) -> None:
    """Advance the time; meanwhile each claim, by its name, has these launches a second and GPU time in percent."""
    begin = clock.now
    clock.advance(seconds=seconds)
    claims = Claim.objects.filter(name__in=rates, state="active")
    keep(
        Sample(
            assignment_uid=assignment.uid, at=begin + timedelta(seconds=second + 1), core_percent=rates[claim.name][1],
            core_limit_percent=100, throttled_percent=0.0, memory_bytes=0, processes=1,
            launches_per_second=rates[claim.name][0],
        )
        for claim in claims
        for assignment in claim.assignments.live()
        for second in range(seconds)
    )  # fmt: skip
    Node.objects.update(last_seen_at=clock.now)


def page_of(claim: Claim) -> str:
    """Return the text of the claim's page, as a member sees it."""
    client = Client()
    client.force_login(User.objects.get(username="max"))
    return " ".join(client.get(reverse("claim", args=[claim.uid])).content.decode().split())


def run(cast: Cast) -> list[str]:
    """Run packing once; return the open and ended proposals, newest first."""
    cast.pool.refresh_from_db()
    packing.drive()
    return [f"{row.kind} {row.claim.name} {row.state}" for row in Proposal.objects.select_related("claim")]


def two(cast: Cast, machine: Machine, **asked: object) -> tuple[Claim, Claim]:
    """Create two claims, alone on a GPU each, and one that waits for a whole one."""
    facts = {"core_request": 40, "core_limit": 100, **asked}
    first, _ = placed(cast, machine, name="first", memory_mib=4 * GIB, **facts)
    second, _ = placed(cast, machine, name="second", memory_mib=2 * GIB, **facts)
    assert {place(first), place(second)} == {0, 1}
    ask(cast, tenant=cast.globex, name="waits", core_request=100, core_limit=100, memory_mib=GIB)
    run_round(cast.pool)
    return first, second


def place(claim: Claim) -> int:
    return claim.assignments.live().get().gpu.index


def pack(cast: Cast, machine: Machine, clock: Clock) -> tuple[Claim, Claim]:
    """Put two claims together by an accepted proposal."""
    first, second = two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second proposed"]
    accept(principal=SYSTEM, proposal=Proposal.objects.get())
    for _ in range(2):
        machine.obey()
    second.refresh_from_db()
    assert (second.state, place(second)) == ("active", place(first))
    return first, second


def test_a_pair_with_time_for_both_is_proposed_and_accepted(cast: Cast, machine: Machine, clock: Clock) -> None:
    first, second = two(cast, machine)
    assert run(cast) == [], "nothing is measured yet"
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second proposed"]
    assert run(cast) == ["pack second proposed"], "an equal one is kept"
    proposal = Proposal.objects.get()
    assert proposal.numbers == {
        "kept_percent": 100.0, "pack_keep_percent": 90.0, "launches_alone": 50.0, "core_alone_percent": 40.0
    }  # fmt: skip
    assert "both would keep 100 % of their rates there; 90 % is enough" in proposal.explanation
    answer = cast.max.post(f"proposals/{proposal.uid}/accept/")
    assert (answer.status, answer.body["state"]) == (200, "applied"), answer.body
    second.refresh_from_db()
    assert second.state == "suspending"
    for _ in range(2):
        machine.obey()
    run_round(cast.pool)
    assert place(first) == place(second)
    assert Claim.objects.get(name="waits").state == "assigned", "the GPU that came free is another's"
    assert_books_agree()


def test_nothing_is_packed_while_nobody_waits(cast: Cast, machine: Machine, clock: Clock) -> None:
    two(cast, machine)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(name="waits"))
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == []


def test_in_mode_apply_the_move_is_ordered_at_once(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="apply")
    _, second = two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second applied"]
    second.refresh_from_db()
    assert second.state == "suspending"


def test_a_pair_that_loses_too_much_is_parted_and_not_made_again(cast: Cast, machine: Machine, clock: Clock) -> None:
    first, second = pack(cast, machine, clock)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(name="waits"))
    measure(clock, {"first": (150.0, 25.0), "second": (50.0, 40.0)})
    found = run(cast)
    assert found[0] == "unpack second proposed"
    assert PackProfile.objects.get(claim=first).kept == pytest.approx(75.0)
    proposal = Proposal.objects.get(kind="unpack")
    assert "has 75 % of the launches a second that it had alone" in proposal.explanation
    accept(principal=SYSTEM, proposal=proposal)
    for _ in range(2):
        machine.obey()
    assert place(first) != place(second)
    ask(cast, tenant=cast.globex, name="waits too", core_request=100, core_limit=100, memory_mib=GIB)
    run_round(cast.pool)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast)[0] == "unpack second applied", "for a day they are not put together again"
    clock.advance(seconds=86_400)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast)[0] == "pack second proposed"
    assert_books_agree()


def test_a_pair_that_keeps_its_rates_stays(cast: Cast, machine: Machine, clock: Clock) -> None:
    pack(cast, machine, clock)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(name="waits"))
    measure(clock, {"first": (185.0, 28.0), "second": (49.0, 40.0)})
    assert run(cast) == ["pack second applied"]


def test_the_claim_shows_what_was_measured(cast: Cast, machine: Machine, clock: Clock) -> None:
    first, _ = two(cast, machine)
    path = f"claims/{first.uid}/"
    assert cast.max.get(path).body["pack_profile"] is None
    assert "Alone on its GPU" not in page_of(first)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    run(cast)
    alone = cast.max.get(path).body["pack_profile"]
    assert (alone["launches"], alone["core_percent"], alone["kept_percent"]) == (200.0, 30.0, None)
    shown = page_of(first)
    assert "200 launches a second, 30 % of GPU time" in shown
    assert "Beside another claim" not in shown
    PackProfile.objects.filter(claim=first).update(kept=92.0)
    found = cast.max.get(path).body
    assert found["pack_profile"]["kept_percent"] == 92.0
    assert ("Packed", True, None, "keeps 92 % of 200 launches a second alone") in describe._conditions(found)
    assert "keeps 92 % of its launches" in page_of(first)


def test_a_claim_that_rests_beside_another_is_no_loss(cast: Cast, machine: Machine, clock: Clock) -> None:
    first, _ = pack(cast, machine, clock)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(name="waits"))
    measure(clock, {"first": (0.0, 0.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second applied"]
    assert PackProfile.objects.get(claim=first).kept is None


def test_a_window_in_which_the_neighbour_came_does_not_count(cast: Cast, machine: Machine, clock: Clock) -> None:
    pack(cast, machine, clock)
    release_claim(principal=SYSTEM, claim=Claim.objects.get(name="waits"))
    measure(clock, {"first": (10.0, 25.0), "second": (5.0, 40.0)}, seconds=60)
    assert run(cast) == ["pack second applied"]


@pytest.mark.parametrize("facts", [{"rebalance": False}, {"group": "g"}])
def test_claims_that_packing_leaves_alone(cast: Cast, machine: Machine, clock: Clock, facts: dict[str, object]) -> None:
    two(cast, machine)
    Claim.objects.filter(name__in=("first", "second")).update(**facts)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == []


def test_a_proposal_that_is_no_longer_found_expires(cast: Cast, machine: Machine, clock: Clock) -> None:
    two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second proposed"]
    measure(clock, {"first": (200.0, 80.0), "second": (50.0, 70.0)})
    assert run(cast) == ["pack second expired"]


def test_after_a_dismissal_the_claim_rests(cast: Cast, machine: Machine, clock: Clock) -> None:
    two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    run(cast)
    dismiss(principal=SYSTEM, proposal=Proposal.objects.get())
    Claim.objects.filter(name="second").update(rebalanced_at=clock.now)
    clock.advance(seconds=15)
    assert "pack second proposed" not in run(cast)


def test_a_move_that_the_claim_refuses_is_not_tried_in_each_run(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="apply")
    two(cast, machine)
    Node.objects.update(host_memory_mib=0)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    assert run(cast) == ["pack second failed"]
    assert "Host memory" in Proposal.objects.get().words
    clock.advance(seconds=15)
    Node.objects.update(last_seen_at=clock.now)
    assert [one for one in run(cast) if "second" in one] == ["pack second failed"]


def test_a_claim_that_moved_since_makes_the_proposal_stale(cast: Cast, machine: Machine, clock: Clock) -> None:
    two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    run(cast)
    proposal = Proposal.objects.get()
    Proposal.objects.update(before={"gpus": ["GPU-elsewhere"]})
    answer = cast.max.post(f"proposals/{proposal.uid}/accept/")
    assert (answer.status, answer.code) == (409, "proposal-stale")


def test_off_by_default_and_without_rebalancing(cast: Cast, machine: Machine, clock: Clock) -> None:
    two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    for change in ({"pack_keep_percent": None}, {"pack_keep_percent": 90, "rebalance_mode": "off"}):
        change_pool(principal=SYSTEM, pool=cast.pool, **change)
        assert run(cast) == []


def test_the_setting_is_bounded(cast: Cast, machine: Machine) -> None:
    for value, status in ((49, 400), (50, 200), (100, 200), (101, 400), (None, 200)):
        assert cast.olga.patch("pools/default/", {"pack_keep_percent": value}).status == status


def test_pairs_found_to_lose_are_forgotten_after_a_day(cast: Cast, machine: Machine, clock: Clock) -> None:
    first, second = two(cast, machine)
    measure(clock, {"first": (200.0, 30.0), "second": (50.0, 40.0)})
    run(cast)
    measuring.write_apart(first, second, clock.now)
    profile = PackProfile.objects.get(claim=second)
    assert list(profile.apart) == [str(first.uid)]
    clock.advance(seconds=2 * 86_400)
    measuring.write_apart(second, second, clock.now)
    assert list(PackProfile.objects.get(claim=second).apart) == [str(second.uid)]
