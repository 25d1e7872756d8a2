"""Claims in the MIG instance of another claim of their tenant: their room, their charge, and their end."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone

from agent import wire
from apps.instances import seats
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import end_assignments, release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import failover
from tests.cast import Cast, Machine, assert_books_agree, give, give_plenty, lose, used
from tests.racing import race, without_constraint
from tests.scheduling.test_isolation import divided, hard, outlive_grace

GIB = 1024
# 42 % and 71,168 MiB, of which its own programs have 12 % and 16 GiB.
OPEN = {"profile": "3g.71gb", "own_core": 12, "own_memory_mib": 16 * GIB}


def opened(cast: Cast, machine: Machine, **more: Any) -> Claim:
    """Create an active claim that opens its instance."""
    claim = hard(cast, **{**OPEN, **more})
    run_round(cast.pool)
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "active"
    return claim


def inside(cast: Cast, opener: Claim, *, core: int = 10, memory_mib: int = 10 * GIB, **more: Any) -> Claim:
    """Create a claim in the instance of this one."""
    body = {"tenant": "acme", "instance_of": str(opener.uid), "core_request": core, "memory_mib": memory_mib}
    answer = cast.max.post("claims/", {**body, **more})
    assert answer.status == 201, answer.body
    return Claim.objects.get(uid=answer.body["uid"])


def room(opener: Claim) -> tuple[int | None, int | None]:
    item = opener.assignments.live().get()
    return item.room_core, item.room_memory_mib


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return divided(cast)


@pytest.fixture
def opener(cast: Cast, machine: Machine) -> Claim:
    return opened(cast, machine)


def test_a_claim_in_an_instance_is_placed_at_once_and_charged_with_the_instance(cast: Cast) -> None:
    machine = divided(cast)
    # No more than the instance itself.
    give(cast.acme, core_percent=42, memory_mib=71168)
    opener = opened(cast, machine)
    claim = inside(cast, opener, core_limit=42)
    assert (claim.state, claim.profile, claim.isolation, claim.core_limit) == ("assigned", "3g.71gb", "hard", 42)
    assert room(opener) == (20, 71168 - 26 * GIB)
    machine.obey()
    claim.refresh_from_db()
    assert claim.state == "active"
    assert used(cast.acme) == {"core_percent": 42, "memory_mib": 71168}
    assert_books_agree()


def test_the_agent_gets_limits_of_both_and_the_instance_they_share(cast: Cast, machine: Machine) -> None:
    opener = opened(cast, machine)
    inside(cast, opener, core_limit=30)
    first, second = desired_state(machine.node).assignments
    place = wire.MigPlace(profile="3g.71gb", start=4, size=4)
    shared = wire.SharedInstance(holder=first.uid, core_percent=42)
    assert (first.mig, first.shared, second.mig, second.shared) == (place, shared, place, shared)
    limits = [(one.core_request, one.core_limit, one.memory_bytes >> 30, one.backend) for one in (first, second)]
    assert limits == [(12, 42, 16, "turns"), (10, 30, 10, "turns")]


def test_a_claim_that_does_not_fit_waits_until_another_has_left_and_the_agent_has_said_so(
    cast: Cast, machine: Machine, opener: Claim
) -> None:
    first, waits = inside(cast, opener, core=20), inside(cast, opener, core=20)
    machine.obey()
    assert waits.state == "queued"
    assert waits.reasons == [
        {
            "code": "instance-full",
            "gpus": 0,
            "detail": "The instance of claim unnamed has 10 % core and 44544 MiB left; 20 % and 10240 MiB are needed",
        }
    ]
    release_claim(principal=SYSTEM, claim=first)
    assert seats.drive() == 0, "its programs may still use the memory"
    machine.obey()
    assert seats.drive() == 1
    waits.refresh_from_db()
    assert waits.state == "assigned"
    assert_books_agree()


def test_no_round_places_it_elsewhere_and_a_smaller_one_passes_it(cast: Cast, machine: Machine, opener: Claim) -> None:
    large, waits = inside(cast, opener, core=20), inside(cast, opener, core=11)
    run_round(cast.pool)
    small = inside(cast, opener, core=10)
    waits.refresh_from_db()
    assert [claim.state for claim in (large, waits, small)] == ["assigned", "queued", "assigned"]


def test_limits_change_live_within_the_instance(cast: Cast, machine: Machine, opener: Claim) -> None:
    claim = inside(cast, opener)
    machine.obey()
    path = f"claims/{claim.uid}/"
    inside(cast, opener, core=1, memory_mib=GIB)
    assert cast.max.patch(path, {"core_request": 29, "memory_mib": 20 * GIB}).status == 200
    assert room(opener) == (0, 71168 - 37 * GIB)
    full = cast.max.patch(path, {"memory_mib": 54 * GIB})
    assert (full.status, full.code) == (422, "instance-too-small")
    more = cast.max.patch(path, {"memory_mib": 53 * GIB})
    assert (more.status, more.code) == (409, "no-room")
    assert cast.max.patch(path, {"core_request": 5, "memory_mib": 8 * GIB}).status == 200
    assert room(opener)[0] == 0, "less is only wanted so far"
    # Its programs still use more than that.
    machine.obey(memory_bytes=12 << 30)
    assert room(opener) == (24, 71168 - 37 * GIB)
    machine.obey()
    assert room(opener) == (24, 71168 - 25 * GIB)
    assert_books_agree()


def test_they_end_with_it_as_soon_as_that_is_committed(
    cast: Cast, machine: Machine, opener: Claim, django_capture_on_commit_callbacks: Any
) -> None:
    """Without waiting for the next of the runs every two seconds."""
    placed, waits = inside(cast, opener, core=30), inside(cast, opener, core=30)
    machine.obey()
    with django_capture_on_commit_callbacks(execute=True):
        release_claim(principal=SYSTEM, claim=opener)
    assert not any(one.present for one in desired_state(machine.node).assignments)
    for claim, state in ((placed, "releasing"), (waits, "released")):
        claim.refresh_from_db()
        assert claim.state == state
    assert seats.drive() == 0


def test_they_go_back_to_the_queue_with_it_as_soon_as_that_is_committed(
    cast: Cast, machine: Machine, opener: Claim, django_capture_on_commit_callbacks: Any
) -> None:
    claim = inside(cast, opener)
    machine.obey()
    opener.refresh_from_db()
    with django_capture_on_commit_callbacks(execute=True):
        end_assignments(opener, preempt_at=timezone.now())
    claim.refresh_from_db()
    assert (claim.state, claim.preempt_at is None) == ("releasing", False)


def test_an_agent_that_is_too_old_gets_no_claim_in_an_instance(cast: Cast, machine: Machine, opener: Claim) -> None:
    """It would make an instance for each."""
    Node.objects.update(shared_instances=False)
    claim = inside(cast, opener)
    assert (claim.state, claim.reasons[0]["code"]) == ("queued", "instance-not-ready")
    assert "The agent of node mig1, on which its instance is, is too old" in claim.reasons[0]["detail"]
    Node.objects.update(shared_instances=True)
    assert seats.drive() == 1


def test_a_claim_opens_its_instance_on_a_node_whose_agent_can_share_it(cast: Cast, machine: Machine) -> None:
    Node.objects.update(shared_instances=False)
    answer = cast.max.post("claims/", {"tenant": "acme", "isolation": "hard", **OPEN})
    assert (answer.status, answer.code) == (422, "impossible-claim")
    assert "without the labels gpucloud.io/shared-instances=true" in answer.body["detail"]
    newer = divided(cast, "mig2")
    claims = [opened(cast, newer), hard(cast, profile="1g.18gb")]
    run_round(cast.pool)
    nodes = [list(claim.assignments.values_list("gpu__node__name", flat=True)) for claim in claims]
    assert nodes[0] == ["mig2"]
    assert all(nodes), "one that has its instance alone is placed on either"


def test_its_end_is_that_of_the_claim_that_has_the_instance(cast: Cast, machine: Machine, opener: Claim) -> None:
    placed, waits = inside(cast, opener, core=30), inside(cast, opener, core=30)
    release_claim(principal=SYSTEM, claim=opener)
    wanted = {one.claim_uid: one for one in desired_state(machine.node).assignments}
    assert [wanted[str(one.uid)].present for one in (opener, placed)] == [False, True]
    assert seats.drive() == 2
    machine.obey()
    for claim in (opener, placed, waits):
        claim.refresh_from_db()
        assert claim.state == "released"
    assert "the claim whose instance it used has ended" in placed.reasons[0]["detail"]
    assert_books_agree()


def test_both_go_to_the_next_instance_when_their_node_is_drained(cast: Cast, machine: Machine, opener: Claim) -> None:
    claim = inside(cast, opener)
    machine.obey()
    other = divided(cast, "mig2")
    assert cast.olga.post("nodes/mig1/drain/", {"grace_seconds": 0}).status == 200
    outlive_grace(cast, machine)
    seats.drive()
    machine.obey()
    run_round(cast.pool)
    seats.drive()
    other.obey()
    claim.refresh_from_db()
    (item,) = claim.present_assignments
    assert (claim.state, item.gpu.node.name) == ("active", "mig2")
    assert_books_agree()


def test_a_claim_that_goes_back_to_the_queue_takes_those_in_its_instance_with_it(
    cast: Cast, machine: Machine, opener: Claim
) -> None:
    claim = inside(cast, opener)
    machine.obey()
    opener.refresh_from_db()
    end_assignments(opener, preempt_at=timezone.now())
    assert seats.drive() == 1
    machine.obey()
    for one in (opener, claim):
        one.refresh_from_db()
        assert one.state == "queued"
    run_round(cast.pool)
    assert seats.drive() == 1
    assert_books_agree()


def test_a_lost_node_leaves_nothing_taken(cast: Cast, machine: Machine, opener: Claim) -> None:
    claim = inside(cast, opener)
    cast.olga.patch("pools/default/", {"failover_policy": "requeue", "failover_after_seconds": 30})
    lose(machine)
    assert failover.drive() == 1
    claim.refresh_from_db()
    assert claim.state == "queued"
    assert not Assignment.objects.live().exists()
    assert_books_agree()


def test_nothing_is_placed_in_an_instance_on_a_cordoned_gpu(cast: Cast, machine: Machine, opener: Claim) -> None:
    assert cast.olga.patch(f"gpus/{machine.gpu().uuid}/", {"cordoned": True}).status == 200
    claim = inside(cast, opener)
    assert (claim.state, claim.reasons[0]["code"]) == ("queued", "instance-not-ready")
    assert "GPU 0 of node mig1" in claim.reasons[0]["detail"]


def test_a_dry_run_says_whether_there_is_room(cast: Cast, machine: Machine, opener: Claim) -> None:
    body = {"tenant": "acme", "instance_of": str(opener.uid), "memory_mib": GIB}
    fits = cast.max.post("claims/?dry_run=true", {**body, "core_request": 30}).body
    inside(cast, opener)
    waits = cast.max.post("claims/?dry_run=true", {**body, "core_request": 30}).body
    assert [one["state"] for one in (fits, waits)] == ["assigned", "queued"]
    assert [reason["code"] for reason in waits["reasons"]] == ["instance-full"]
    assert room(opener)[0] == 20


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "a profile": ({"profile": "1g.18gb"}, 422, "not-with-hard-isolation", "leave profile out"),
    "a part of its own": ({"own_core": 1, "own_memory_mib": 1}, 400, "invalid-fields", ""),
    "a model": ({"gpu_model": "NVIDIA H200"}, 422, "not-with-hard-isolation", "leave gpu_model out"),
    "best effort": ({"class": "best-effort"}, 422, "not-with-hard-isolation", "leave class out"),
    "too much core": ({"core_request": 31}, 422, "instance-too-small", "30 % core and 54784 MiB"),
    "too high a limit": ({"core_limit": 43}, 422, "instance-too-small", "core_limit is at most 42 %"),
    "another pool": ({"pool": "other"}, 409, "not-in-this-instance", "is in pool default"),
    "nobody's": ({"instance_of": "00000000-0000-0000-0000-000000000001"}, 409, "not-in-this-instance", "has no claim"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_in_an_instance_is_refused_with_what_to_do(cast: Cast, opener: Claim, name: str) -> None:
    cast.olga.post("pools/", {"name": "other"})
    changes, status, code, words = REFUSED[name]
    body = {"tenant": "acme", "instance_of": str(opener.uid), "core_request": 10, "memory_mib": GIB}
    answer = cast.max.post("claims/", {**body, **changes})
    assert (answer.status, answer.code) == (status, code), answer.body
    assert words in answer.body["detail"]


def test_creating_is_audited_with_the_instance(cast: Cast, opener: Claim) -> None:
    inside(cast, opener)
    last, first = AuditEvent.objects.filter(action="claim.create").order_by("-pk")
    assert (first.after or {})["own_memory_mib"] == 16 * GIB
    assert (last.after or {})["instance_of"] == str(opener.uid)


def test_an_instance_is_open_to_its_own_tenant_only(cast: Cast, opener: Claim) -> None:
    give_plenty(cast.globex)
    body = {"tenant": "globex", "instance_of": str(opener.uid), "core_request": 1, "memory_mib": 1}
    answer = cast.gus.post("claims/", body)
    assert (answer.status, answer.code) == (409, "not-in-this-instance")


def test_an_instance_that_is_not_opened_takes_nobody(cast: Cast, machine: Machine) -> None:
    alone = opened(cast, machine, own_core=None, own_memory_mib=None)
    body = {"tenant": "acme", "instance_of": str(alone.uid), "core_request": 1, "memory_mib": 1}
    answer = cast.max.post("claims/", body)
    assert (answer.status, answer.code) == (409, "not-in-this-instance")
    assert "make one with profile, own_core and own_memory_mib" in answer.body["detail"]


def test_an_own_part_is_whole_and_fits_its_profile(cast: Cast, machine: Machine) -> None:
    half = cast.max.post("claims/", {"tenant": "acme", "profile": "3g.71gb", "own_core": 1})
    assert (half.status, list(half.body["errors"])) == (400, ["own_memory_mib"])
    body = {"tenant": "acme", "profile": "1g.18gb", "own_core": 15, "own_memory_mib": 1}
    large = cast.max.post("claims/", body)
    assert (large.status, large.code) == (422, "profile-too-small")


def fill(cast: Cast, *, at_once: int) -> list[int | None]:
    """Let claims that together need more than the instance has race for it; return the core that they have taken."""
    give_plenty(cast.acme)
    machine = divided(cast).stay_online()
    opener = opened(cast, machine)
    body = {"tenant": "acme", "instance_of": str(opener.uid), "core_request": 8, "memory_mib": GIB}
    race([lambda: cast.max.post("claims/", body)] * at_once)
    race([seats.drive] * 4)
    return list(Assignment.objects.filter(claim__instance_of=opener.uid).values_list("taken_core", flat=True))


@pytest.mark.django_db(transaction=True)
def test_claims_that_race_never_overfill_an_instance(real_cast: Cast) -> None:
    # 30 % are open.
    assert fill(real_cast, at_once=8) == [8, 8, 8]
    assert Claim.objects.filter(reasons__0__code="instance-full").count() == 5
    assert_books_agree()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take room without the check."""

    def take(claim: Claim, *, core: int, memory_mib: int) -> bool:
        seats.give_back(claim, core=-core, memory_mib=-memory_mib)
        return True

    monkeypatch.setattr(seats, "_take", take)


@pytest.mark.usefixtures("blind")
@pytest.mark.django_db(transaction=True)
def test_control_the_constraint_alone_stops_what_is_taken_blindly(real_cast: Cast) -> None:
    assert fill(real_cast, at_once=8) == [8, 8, 8]


@pytest.fixture
def no_constraint(real_cast: Cast) -> Iterator[None]:
    """Drop the constraint behind the check, for this test."""
    with without_constraint(Assignment, "scheduling_assignment_room_core_check"):
        yield


@pytest.mark.usefixtures("blind", "no_constraint")
@pytest.mark.django_db(transaction=True)
def test_control_without_both_guards_an_instance_is_overfilled(real_cast: Cast) -> None:
    assert fill(real_cast, at_once=8) == [8] * 8
