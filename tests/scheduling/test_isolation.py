"""Claims with hard isolation: their profile, their instance, their quota; and what they are refused."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import create_pool
from apps.scheduling.models import Assignment, Claim, Round
from apps.scheduling.services.claims import isolation
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles import commits
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet import devices
from apps.scheduling.services.reclaiming import draining, preemption
from apps.whatif.rounds import replay
from tests.cast import Cast, Machine, ask, assert_books_agree, give, give_plenty, placed, used
from tests.racing import race, without_constraint
from tests.scheduling.divided import MEMORY_MIB, on_the_wire

H200 = {"gpus": 2, "memory_mib": MEMORY_MIB["H200"], "model": "NVIDIA H200"}


def divided(cast: Cast, name: str = "mig1", **facts: Any) -> Machine:
    """Return a node of two GPUs, the first of them in MIG mode."""
    return Machine(name, cast.pool, **{**H200, "mig": {0: on_the_wire()}, **facts}).stay_online()


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return divided(cast)


def hard(cast: Cast, **asked: Any) -> Claim:
    """Create a claim with hard isolation through the API; return its row."""
    answer = cast.max.post("claims/", {"tenant": "acme", "isolation": "hard", **asked})
    assert answer.status == 201, answer.body
    return Claim.objects.get(uid=answer.body["uid"])


def refused(cast: Cast, **asked: Any) -> tuple[int, str, str]:
    answer = cast.max.post("claims/", {"tenant": "acme", "isolation": "hard", **asked})
    return answer.status, answer.code, answer.body["detail"]


@pytest.mark.parametrize(
    ("core", "memory_mib", "profile"),
    [(10, 1024, "1g.18gb"), (10, 17000, "1g.35gb"), (20, 17000, "2g.35gb"), (30, 1024, "3g.71gb"), (90, 1, "7g.141gb")],
)
def test_a_claim_gets_the_smallest_profile_that_has_its_core_and_memory(
    cast: Cast, machine: Machine, core: int, memory_mib: int, profile: str
) -> None:
    claim = hard(cast, core_request=core, memory_mib=memory_mib)
    sizes = isolation.profiles_of(cast.pool, None)
    assert claim.profile == profile
    assert (claim.core_request, claim.memory_mib) == sizes[profile]
    assert claim.core_limit == claim.core_request


def test_a_named_profile_needs_no_core_and_no_memory_and_means_hard_isolation(cast: Cast, machine: Machine) -> None:
    answer = cast.max.post("claims/", {"tenant": "acme", "profile": "2g.35gb"})
    assert answer.status == 201
    shown = {name: answer.body[name] for name in ("isolation", "profile", "core_request", "memory_mib")}
    assert shown == {"isolation": "hard", "profile": "2g.35gb", "core_request": 28, "memory_mib": 33280}
    wrong = cast.max.post("claims/", {"tenant": "acme", "profile": "1g.18gb+me"})
    assert (wrong.status, wrong.body["errors"]["profile"]) == (400, ["Name a profile, such as 2g.35gb."])


def test_quotas_count_the_core_and_memory_of_the_profile(cast: Cast) -> None:
    divided(cast)
    give(cast.acme, core_percent=50, memory_mib=40_000)
    hard(cast, profile="2g.35gb")
    assert used(cast.acme) == {"core_percent": 28, "memory_mib": 33280}
    status, code, _ = refused(cast, core_request=1, memory_mib=1)
    assert (status, code) == (409, "quota-exceeded")


def test_the_claim_is_placed_on_the_gpu_in_mig_mode_with_a_place_of_its_own(cast: Cast, machine: Machine) -> None:
    first, second = (hard(cast, profile="1g.18gb") for _ in range(2))
    run_round(cast.pool)
    places = {item.claim_id: (item.gpu.index, item.mig_start, item.mig_size) for item in Assignment.objects.all()}
    assert places == {first.pk: (0, 6, 1), second.pk: (0, 5, 1)}
    wanted = desired_state(machine.node).assignments
    assert [one.mig for one in wanted] == [wire.MigPlace(profile="1g.18gb", start=start, size=1) for start in (6, 5)]
    machine.obey()
    first.refresh_from_db()
    assert first.state == "active"
    assert_books_agree()


def test_shares_go_to_the_other_gpu_and_wait_where_there_is_none(cast: Cast, machine: Machine) -> None:
    _, item = placed(cast, machine, core_request=100, memory_mib=1024)
    assert item.gpu.index == 1
    waits = ask(cast, core_request=10, memory_mib=1024)
    run_round(cast.pool)
    waits.refresh_from_db()
    assert [reason["code"] for reason in waits.reasons] == ["gpu-in-mig-mode", "gpu-core"]


def test_an_instance_needs_no_back_end_of_its_pool(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, backend="mps")
    cast.pool.refresh_from_db()
    claim, share = hard(cast, profile="1g.18gb"), ask(cast, core_request=10, memory_mib=1024)
    run_round(cast.pool)
    for one in (claim, share):
        one.refresh_from_db()
    assert (claim.state, share.state) == ("assigned", "queued")
    assert [one.backend for one in desired_state(machine.node).assignments] == ["turns"]


def test_a_place_that_is_given_back_goes_to_the_claim_that_waits_for_it(cast: Cast, machine: Machine) -> None:
    large = hard(cast, profile="4g.71gb")
    run_round(cast.pool)
    machine.obey()
    waits = hard(cast, profile="4g.71gb")
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "queued"
    assert [reason["code"] for reason in waits.reasons] == ["gpu-not-mig", "mig-place"]
    assert waits.reasons[1]["detail"] == "1 GPU has no free place for an instance of 4g.71gb"
    release_claim(principal=SYSTEM, claim=large)
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "queued", "before the agent has removed the instance, nobody else may have its slices"
    machine.obey()
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "assigned"
    assert_books_agree()


def test_a_dry_run_says_whether_an_instance_would_be_there(cast: Cast, machine: Machine) -> None:
    body = {"tenant": "acme", "profile": "4g.71gb"}
    first = cast.max.post("claims/?dry_run=true", body).body
    assert (first["state"], first["gpus"], first["core_request"]) == ("assigned", [machine.gpu().uuid], 57)
    hard(cast, profile="4g.71gb")
    run_round(cast.pool)
    second = cast.max.post("claims/?dry_run=true", body).body
    assert (second["state"], [reason["code"] for reason in second["reasons"]]) == (
        "queued",
        ["gpu-not-mig", "mig-place"],
    )
    assert Claim.objects.count() == 1


def test_the_start_of_a_waiting_claim_is_estimated_by_the_time_limits_of_instances(
    cast: Cast, machine: Machine
) -> None:
    blocking, _ = hard(cast, profile="4g.71gb", time_limit_seconds=600), hard(cast, profile="1g.18gb")
    run_round(cast.pool)
    waits, never = hard(cast, profile="4g.71gb"), hard(cast, profile="7g.141gb")
    run_round(cast.pool)
    blocking.refresh_from_db()
    assert blocking.assigned_at is not None
    found = cast.max.get(f"claims/{waits.uid}/").body["estimated_start_at"]
    assert datetime.fromisoformat(found) - blocking.assigned_at == timedelta(seconds=600)
    # The 1g has no time limit.
    assert cast.max.get(f"claims/{never.uid}/").body["estimated_start_at"] is None


def outlive_grace(cast: Cast, machine: Machine) -> None:
    """Let what has notice leave, and what waits for its room come."""
    for _ in range(2):
        Node.objects.update(last_seen_at=timezone.now())
        run_round(cast.pool)
        draining.drive()
        preemption.drive()
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
        preemption.drive()
        machine.obey()
    run_round(cast.pool)
    machine.obey()


def test_an_instance_is_preempted_for_one_of_higher_priority_whose_place_it_takes(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = divided(cast)
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True)
    low, other = hard(cast, profile="4g.71gb", priority=-1), hard(cast, profile="1g.18gb", priority=-1)
    run_round(cast.pool)
    machine.obey()
    urgent = hard(cast, profile="4g.71gb", priority=5)
    outlive_grace(cast, machine)
    for claim in (low, other, urgent):
        claim.refresh_from_db()
    assert (low.state, other.state, urgent.state) == ("queued", "active", "active")
    assert_books_agree()


def test_a_drained_node_gives_its_instances_back_and_the_claim_gets_one_elsewhere(cast: Cast, machine: Machine) -> None:
    claim = hard(cast, profile="2g.35gb")
    run_round(cast.pool)
    machine.obey()
    other = divided(cast, "mig2")
    assert cast.olga.post("nodes/mig1/drain/", {"grace_seconds": 0}).status == 200
    outlive_grace(cast, machine)
    other.obey()
    claim.refresh_from_db()
    (item,) = claim.present_assignments
    assert (claim.state, item.gpu.node.name, item.mig_start) == ("active", "mig2", 4)
    assert_books_agree()


def test_foreign_instances_keep_their_slices(cast: Cast) -> None:
    give_plenty(cast.acme)
    foreign = [wire.MigPlace(profile="3g.71gb", start=0, size=4)]
    divided(cast, mig={0: on_the_wire(foreign=foreign)})
    waits, fits = hard(cast, profile="4g.71gb"), hard(cast, profile="3g.71gb")
    run_round(cast.pool)
    waits.refresh_from_db()
    assert waits.state == "queued"
    assert fits.assignments.get().mig_start == 4


def test_the_record_of_a_round_replays_with_instances(cast: Cast, machine: Machine) -> None:
    for profile in ("1g.18gb", "3g.71gb", "4g.71gb", "2g.35gb"):
        hard(cast, profile=profile)
    run_round(cast.pool)
    compared = [one for record in Round.objects.all() for one in replay(record)]
    assert len(compared) == 4
    assert all(one.agrees for one in compared)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "two GPUs": ({"gpu_count": 2}, "not-with-hard-isolation", "leave gpu_count out"),
    "a limit": ({"core_limit": 90}, "not-with-hard-isolation", "leave core_limit out"),
    "best effort": ({"class": "best-effort"}, "not-with-hard-isolation", "leave class out"),
    "a label": ({"affinity": "pair"}, "not-with-hard-isolation", "leave affinity out"),
    "a group": ({"group": "g", "group_size": 2}, "not-with-hard-isolation", "make single claims"),
    "a schedule": ({"schedule": "weekdays 09:00-18:00 UTC"}, "not-with-hard-isolation", "leave schedule out"),
    "a move": ({"movable": True}, "not-with-hard-isolation", "leave movable out"),
    "no such profile": ({"profile": "5g.90gb"}, "unknown-profile", "There are: 1g.18gb, 1g.35gb, 2g.35gb"),
    "a small profile": ({"profile": "1g.18gb", "core_request": 50}, "profile-too-small", "has 14 % core"),
    "too much memory": ({"memory_mib": 200_000}, "profile-too-small", "7g.141gb (100 %, 143360 MiB)"),
    "another model": ({"gpu_model": "NVIDIA A10"}, "no-mig-gpu", "no GPU of model NVIDIA A10 in MIG mode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_instance_cannot_have_is_refused_with_what_to_do(cast: Cast, machine: Machine, name: str) -> None:
    asked, code, words = REFUSED[name]
    fields = {"core_request": 10, "memory_mib": 1024, **asked}
    if "profile" in asked:
        fields = {**asked}
    status, found, detail = refused(cast, **fields)
    assert (status, found) == (422, code)
    assert words in detail


def test_a_pool_without_a_gpu_in_mig_mode_is_named(cast: Cast, machine: Machine) -> None:
    create_pool(principal=SYSTEM, name="plain")
    Machine("gpu1", create_pool(principal=SYSTEM, name="shares"))
    status, code, detail = refused(cast, core_request=10, memory_mib=1, pool="shares")
    assert (status, code) == (422, "no-mig-gpu")
    assert detail.startswith("Pool shares has no GPU in MIG mode: ask for isolation shared")


def test_a_malformed_profile_is_refused_by_its_field(cast: Cast, machine: Machine) -> None:
    answer = cast.max.post("claims/", {"tenant": "acme", "profile": "2g.35gb+me"})
    assert (answer.status, list(answer.body["errors"])) == (400, ["profile"])


@pytest.mark.parametrize(
    "change",
    [{"core_request": 50}, {"memory_mib": 1}, {"class": "best-effort"}, {"movable": True}, {"rebalance": True}],
)
def test_an_instance_is_not_resized(cast: Cast, machine: Machine, change: dict[str, Any]) -> None:
    claim = hard(cast, profile="1g.18gb")
    answer = cast.max.patch(f"claims/{claim.uid}/", change)
    assert (answer.status, answer.code) == (409, "fixed-by-profile")


def test_an_instance_is_not_suspended(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = divided(cast, host_memory_mib=1 << 20)
    claim = hard(cast, profile="1g.18gb")
    run_round(cast.pool)
    machine.obey()
    answer = cast.max.post(f"claims/{claim.uid}/suspend/", {})
    assert (answer.status, answer.code) == (409, "cannot-suspend")
    assert "MIG instance" in answer.body["detail"]


def test_creating_is_audited_with_the_profile(cast: Cast, machine: Machine) -> None:
    hard(cast, profile="2g.35gb")
    after = AuditEvent.objects.get(action="claim.create").after or {}
    assert (after["isolation"], after["profile"], after["core_request"]) == ("hard", "2g.35gb", 28)


def test_a_driver_that_reserves_memory_leaves_room_for_the_whole_gpu_profile(cast: Cast) -> None:
    """NVML gives an H200 less memory than its 7g.141gb has."""
    give_plenty(cast.acme)
    divided(cast, memory_mib=143_771 - 615)
    claim = hard(cast, profile="7g.141gb")
    run_round(cast.pool)
    claim.refresh_from_db()
    assert claim.state == "assigned"


def test_the_gpu_tells_its_profiles(cast: Cast, machine: Machine) -> None:
    shown = cast.olga.get(f"gpus/{machine.gpu().uuid}/").body
    assert shown["mig"]["foreign"] == []
    assert shown["mig"]["profiles"][3] == {
        "name": "3g.71gb", "compute_slices": 3, "memory_mib": 71168, "size": 4, "starts": [0, 4],
    }  # fmt: skip
    assert cast.olga.get(f"gpus/{machine.gpu(1).uuid}/").body["mig"] is None


def test_what_no_driver_says_is_left_out(cast: Cast) -> None:
    give_plenty(cast.acme)
    honest = on_the_wire().profiles[0]
    said = [
        honest,
        msgspec.structs.replace(honest, size=8),
        msgspec.structs.replace(honest, name="2g.1gb", starts=[9, 15], size=8),
        msgspec.structs.replace(honest, name="3g.0gb", memory_bytes=1),
    ]
    foreign = [wire.MigPlace(profile="7g.141gb", start=15, size=16)]
    machine = divided(cast, mig={0: wire.Mig(profiles=said, foreign=foreign)})
    facts = machine.gpu().mig
    assert facts is not None
    assert [(one["name"], one["size"]) for one in facts["profiles"]] == [("1g.18gb", 1)]
    claim = hard(cast, core_request=1, memory_mib=1)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert (claim.state, claim.profile) == ("assigned", "1g.18gb")


def test_the_database_refuses_two_instances_on_one_slice(cast: Cast, machine: Machine) -> None:
    first, second = (hard(cast, profile="1g.18gb") for _ in range(2))
    run_round(cast.pool)
    there = first.assignments.get()
    with pytest.raises(IntegrityError, match="assignment_mig_slices_once"), transaction.atomic():
        second.assignments.update(mig_start=there.mig_start)
    # On another GPU the same slice is another one.
    second.assignments.update(mig_start=there.mig_start, gpu=machine.gpu(1))


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commits choose places without a look at what other instances occupy."""
    monkeypatch.setattr(commits, "slices_used", lambda gpus: {})
    monkeypatch.setattr(devices, "slices_used", lambda gpus: {})


def slices_taken(gpu: Gpu) -> list[int]:
    rows = Assignment.objects.live().filter(gpu=gpu).values_list("mig_start", "mig_size")
    return sorted(slice_ for start, size in rows for slice_ in range(start or 0, (start or 0) + (size or 0)))


@pytest.mark.django_db(transaction=True)
def test_rounds_that_race_never_give_one_slice_twice(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = divided(real_cast).stay_online()
    for profile in ("3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb", "4g.71gb", "1g.35gb") * 2:
        hard(real_cast, profile=profile)
    race([lambda: run_round(real_cast.pool)] * 6)
    taken = slices_taken(machine.gpu())
    assert len(taken) == len(set(taken)) >= 7
    assert_books_agree()


@pytest.mark.usefixtures("blind")
@pytest.mark.django_db(transaction=True)
def test_control_the_constraint_alone_stops_what_a_blind_commit_would_overlap(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = divided(real_cast).stay_online()
    for _ in range(3):
        hard(real_cast, profile="1g.18gb")
        race([lambda: run_round(real_cast.pool)] * 2)
    assert slices_taken(machine.gpu()) == [6]


@pytest.fixture
def no_constraint(real_cast: Cast) -> Iterator[None]:
    """Drop the constraint that backs the choice of places, for this test."""
    with without_constraint(Assignment, "assignment_mig_slices_once"):
        yield


@pytest.mark.usefixtures("blind", "no_constraint")
@pytest.mark.django_db(transaction=True)
def test_control_without_both_guards_a_slice_is_given_twice(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = divided(real_cast).stay_online()
    for _ in range(2):
        hard(real_cast, profile="1g.18gb")
        run_round(real_cast.pool)
    assert slices_taken(machine.gpu()) == [6, 6]
