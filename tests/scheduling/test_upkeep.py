"""Periodic tasks on claims: failures, time limits, lost pushes, lost nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import hint_group
from apps.quotas.principals import SYSTEM
from apps.scheduling import tasks
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles import rounds
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing import idleness
from gpucloud import celery_app, hints
from gpucloud.celery import run_together
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, lose, placed, seen, used


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    return Machine("gpu1", cast.pool)


def state_of(claim: Claim) -> str:
    claim.refresh_from_db()
    return str(claim.state)


def age(seconds: int) -> None:
    """Move all timestamps into the past."""
    Assignment.objects.update(updated_at=timezone.now() - timedelta(seconds=seconds))


def test_an_assignment_that_failed_says_why_and_keeps_its_place_until_it_is_released(
    cast: Cast, machine: Machine
) -> None:
    claim = ask(cast)
    run_round(cast.pool)
    assignment = claim.assignments.get()
    machine.say(seen(assignment, "failed", reason="no such device"))
    assert state_of(claim) == "failed"
    answer = cast.max.get(f"claims/{claim.uid}/").body
    assert answer["assignments"][0]["reason"] == "no such device"
    assert used(cast.acme)["core_percent"] == 30
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert state_of(claim) == "released"
    assert_books_agree()


def test_a_claim_that_failed_is_active_again_once_it_is_in_force(cast: Cast, machine: Machine) -> None:
    claim = ask(cast)
    run_round(cast.pool)
    machine.say(seen(claim.assignments.get(), "failed", reason="later"))
    machine.obey()
    assert state_of(claim) == "active"


def test_a_claim_is_released_when_its_time_limit_has_passed(cast: Cast, machine: Machine) -> None:
    short, _ = placed(cast, machine, time_limit_seconds=60)
    long, _ = placed(cast, machine, time_limit_seconds=3600)
    Claim.objects.update(assigned_at=timezone.now() - timedelta(seconds=61))
    assert tasks.expire_claims() == 1
    assert (state_of(short), state_of(long)) == ("releasing", "active")
    assert tasks.expire_claims() == 0


def test_the_time_limit_counts_from_placing(cast: Cast, machine: Machine) -> None:
    claim = ask(cast, time_limit_seconds=1)
    Claim.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert tasks.expire_claims() == 0
    assert state_of(claim) == "pending"


@contextmanager
def pushes(node: Node) -> Iterator[Callable[[float], bool]]:
    """Return True if the servers receive, within so many seconds, the hint to send the node its desired state."""
    with hints._redis().pubsub() as heard:
        heard.subscribe(hints._channel(hint_group(node.pk)))
        assert heard.get_message(timeout=5)
        yield lambda seconds: heard.get_message(timeout=seconds) is not None


def test_what_is_not_observed_after_five_seconds_is_pushed_again(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=40))
    age(4)
    assert tasks.repair_pushes() == 0
    age(6)
    with pushes(machine.node) as told:
        assert tasks.repair_pushes() == 1
        assert told(5)


def test_a_release_whose_report_got_lost_is_pushed_again(cast: Cast, machine: Machine) -> None:
    claim, assignment = placed(cast, machine)
    release_claim(principal=SYSTEM, claim=claim)
    machine.say(seen(assignment, "releasing"))
    age(6)
    assert tasks.repair_pushes() == 1


def test_what_is_observed_is_not_pushed_again(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    done, _ = placed(cast, machine)
    release_claim(principal=SYSTEM, claim=done)
    machine.obey()
    age(60)
    assert tasks.repair_pushes() == 0
    assert state_of(claim) == "active"


def test_a_node_that_is_lost_is_not_pushed_to(cast: Cast, machine: Machine) -> None:
    ask(cast)
    run_round(cast.pool)
    age(60)
    assert tasks.repair_pushes() == 1
    lose(machine)
    assert tasks.repair_pushes() == 0


def test_each_change_of_a_node_raises_its_frame_and_is_pushed_after_the_commit(
    cast: Cast, machine: Machine, django_capture_on_commit_callbacks: Any
) -> None:
    def frame() -> int:
        return Node.objects.get(name="gpu1").frame

    frames = [frame()]
    claim = ask(cast)
    for act in (
        lambda: run_round(cast.pool),
        lambda: resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=40)),
        lambda: release_claim(principal=SYSTEM, claim=claim),
    ):
        with pushes(machine.node) as told:
            with django_capture_on_commit_callbacks(execute=True):
                act()
                assert not told(0.05)
            assert told(5)
        frames.append(frame())
    assert frames == [1, 2, 3, 4]


def test_the_desired_state_holds_all_that_is_wanted_and_nothing_that_is_over(cast: Cast, machine: Machine) -> None:
    kept, _ = placed(cast, machine)
    ending, _ = placed(cast, machine)
    gone, _ = placed(cast, machine)
    release_claim(principal=SYSTEM, claim=gone)
    machine.obey()
    release_claim(principal=SYSTEM, claim=ending)
    wanted = {item.claim_uid: item for item in desired_state(machine.node).assignments}
    assert {uid: item.present for uid, item in wanted.items()} == {str(kept.uid): True, str(ending.uid): False}
    assert wanted[str(kept.uid)].tenant == "acme"
    assert wanted[str(kept.uid)].memory_bytes == kept.memory_mib << 20


def test_claims_that_fit_are_found_behind_any_number_that_do_not(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "BATCH", 2)
    placed(cast, machine, core_request=80, gpu_count=4)
    large = [ask(cast, core_request=50, priority=level) for level in (9, 5, 5, 0)]
    small = [ask(cast, core_request=10, priority=level) for level in (0, -1)]
    run_round(cast.pool)
    assert {state_of(claim) for claim in large} == {"queued"}
    assert {state_of(claim) for claim in small} == {"assigned"}


def test_a_lost_node_keeps_its_charges(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    lose(machine)
    run_round(cast.pool)
    release_claim(principal=SYSTEM, claim=claim)
    assert state_of(claim) == "releasing"
    assert used(cast.acme)["core_percent"] == 30


def test_a_forgotten_node_gives_everything_back(cast: Cast, machine: Machine) -> None:
    claims = [placed(cast, machine, gpu_count=2)[0] for _ in range(3)]
    assert cast.olga.post("nodes/gpu1/forget/").code == "node-online"
    lose(machine)
    assert cast.olga.post("nodes/gpu1/forget/").status == 200
    assert {state_of(claim) for claim in claims} == {"released"}
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert_books_agree()


def test_a_service_that_fails_keeps_none_of_the_others_from_their_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise ValueError("of one service")

    monkeypatch.setattr(tasks, "repair_pushes", fail)
    monkeypatch.setattr(tasks, "drive_preemption", lambda: 3)
    assert tasks.drive_claims() == 3
    monkeypatch.setattr(tasks, "watch_nodes", fail)
    monkeypatch.setattr(tasks, "release_lapsed", lambda: 4)
    monkeypatch.setattr(idleness, "drive", lambda: 5)
    monkeypatch.setattr(tasks, "expire_claims", lambda: 6)
    assert tasks.watch_claims() == 15


def test_every_name_of_the_schedule_is_a_task(settings: Any) -> None:
    celery_app.loader.import_default_modules()
    entries = settings.CELERY_BEAT_SCHEDULE.values()
    together = [entry["args"][0] for entry in entries if entry["task"] == run_together.name]
    assert {entry["task"] for entry in entries}.union(*together) <= set(celery_app.tasks)


def test_tasks_of_one_message_all_run_though_one_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def fail() -> None:
        ran.append("first")
        raise ValueError("of one task")

    monkeypatch.setitem(celery_app.tasks, "first", fail)
    monkeypatch.setitem(celery_app.tasks, "second", lambda: ran.append("second"))
    run_together(["first", "second"])
    assert ran == ["first", "second"]
