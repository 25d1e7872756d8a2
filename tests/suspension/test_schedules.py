"""Claims with a schedule: a notice, the suspension at the end of the window, and the resumption at its beginning."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import AuditEvent, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension import scheduled
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import Cast, Machine, assert_books_agree, placed, seen
from tests.suspension.rotations import Clock, clock

__all__ = ["clock"]
pytestmark = pytest.mark.django_db


def go(clock: Clock, to: datetime) -> int:
    """Let it be this time, with live nodes, and run the schedules once."""
    clock.ahead = to - clock.real()
    Node.objects.update(last_seen_at=timezone.now())
    return scheduled.drive()


def day(number: int, hour: int, minute: int = 0) -> datetime:
    """Return a moment of a week in June 2027: 0 is a Monday."""
    return datetime(2027, 6, 7, hour, minute, 1, tzinfo=UTC) + timedelta(days=number)


def at_work(cast: Cast, machine: Machine, clock: Clock, **asked: Any) -> Claim:
    """Create a claim of weekdays, 9 to 18, that runs on a Monday at noon."""
    go(clock, day(0, 12))
    return placed(cast, machine, **{"schedule": "weekdays 09:00-18:00", **asked})[0]


def state(claim: Claim) -> str:
    claim.refresh_from_db()
    return f"{claim.state} {claim.suspended_by}".strip()


def close(machine: Machine, clock: Clock) -> None:
    """Let Monday's window end."""
    go(clock, day(0, 17, 56))
    go(clock, day(0, 18))
    machine.obey()


def finish(cast: Cast, machine: Machine) -> None:
    run_round(cast.pool)
    machine.obey()


def test_a_claim_is_suspended_at_the_end_of_its_window_and_resumes_at_the_next(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim = at_work(cast, machine, clock)
    hook = {"tenant": "acme", "url": "https://hooks.example.org/x"}
    events = ["claim.preemption_notice", "claim.suspended", "claim.resumed"]
    cast.anna.post("webhooks/", {**hook, "events": events})
    assert go(clock, day(0, 17, 54)) == 0
    assert go(clock, day(0, 17, 56)) == 1
    body = cast.max.get(f"claims/{claim.uid}/").body
    assert body["suspends_at"] == "2027-06-07T18:00:00Z"
    assert go(clock, day(0, 17, 59)) == 0
    assert go(clock, day(0, 18)) == 1
    assert state(claim) == "suspending schedule"
    assert claim.suspends_at is None
    machine.obey()
    assert state(claim) == "suspended schedule"
    assert machine.gpu().core_used == 0
    assert go(clock, day(1, 8, 59)) == 0
    assert go(clock, day(1, 9)) == 1
    finish(cast, machine)
    assert state(claim) == "active"
    assert go(clock, day(1, 9, 1)) == 0
    assert list(WebhookDelivery.objects.order_by("pk").values_list("kind", flat=True)) == events
    assert AuditEvent.objects.filter(action="claim.notice").count() == 1
    assert_books_agree()


def test_over_the_weekend_it_stays_suspended(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim = at_work(cast, machine, clock)
    go(clock, day(4, 17, 56))
    go(clock, day(4, 18))
    machine.obey()
    for number in (5, 6):
        assert go(clock, day(number, 12)) == 0
    assert state(claim) == "suspended schedule"
    assert go(clock, day(7, 9)) == 1


def test_one_that_its_owner_resumes_runs_until_the_end_of_the_next_window(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim = at_work(cast, machine, clock)
    close(machine, clock)
    go(clock, day(0, 20))
    resume_claim(principal=SYSTEM, claim=claim)
    finish(cast, machine)
    for moment in (day(0, 20, 1), day(1, 8), day(1, 12)):
        assert go(clock, moment) == 0
        assert state(claim) == "active"
    close_at = day(1, 17, 56)
    go(clock, close_at)
    go(clock, day(1, 18))
    assert state(claim) == "suspending schedule"


def test_what_others_suspend_is_theirs(cast: Cast, machine: Machine, clock: Clock) -> None:
    """Inside its window a schedule resumes only what it has suspended; an owner's order makes that the owner's."""
    claim = at_work(cast, machine, clock)
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert go(clock, day(1, 12)) == 0
    assert state(claim) == "suspended owner"
    resume_claim(principal=SYSTEM, claim=claim)
    finish(cast, machine)
    go(clock, day(1, 17, 56))
    go(clock, day(1, 18))
    machine.obey()
    suspend_claim(principal=SYSTEM, claim=claim)
    assert state(claim) == "suspended owner"
    assert go(clock, day(2, 12)) == 0


def test_one_that_a_drain_brings_back_outside_of_its_window_gets_a_notice(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim = at_work(cast, machine, clock)
    suspend_claim(principal=SYSTEM, claim=claim, by="drain")
    machine.obey()
    go(clock, day(0, 20))
    resume_claim(principal=SYSTEM, claim=claim, by="drain")
    finish(cast, machine)
    assert go(clock, day(0, 20, 1)) == 1
    claim.refresh_from_db()
    assert claim.suspends_at is not None
    assert abs(claim.suspends_at - day(0, 20, 6)) < timedelta(seconds=10)
    go(clock, day(0, 20, 5))
    assert state(claim) == "active"
    go(clock, day(0, 20, 7))
    assert state(claim) == "suspending schedule"


def test_another_schedule_withdraws_the_notice_and_brings_it_back(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim = at_work(cast, machine, clock)
    go(clock, day(0, 17, 56))
    resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(schedule="weekdays 9-20"))
    assert go(clock, day(0, 18, 1)) == 0
    assert (state(claim), claim.suspends_at) == ("active", None)
    go(clock, day(0, 19, 56))
    go(clock, day(0, 20))
    machine.obey()
    assert state(claim) == "suspended schedule"
    answer = cast.max.patch(f"claims/{claim.uid}/", {"schedule": ""})
    assert answer.status == 200, answer.body
    assert go(clock, day(0, 20, 1)) == 1
    finish(cast, machine)
    assert state(claim) == "active"
    assert_books_agree()


def test_one_that_cannot_be_suspended_says_why_until_its_window_opens(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    claim = at_work(cast, machine, clock)
    Node.objects.update(can_suspend=False)
    go(clock, day(0, 17, 56))
    assert go(clock, day(0, 18)) == 1
    assert state(claim) == "active"
    assert claim.reasons[0]["code"] == "schedule-refused"
    assert "Node gpu1 cannot suspend programs" in claim.reasons[0]["detail"]
    assert go(clock, day(0, 18, 10)) == 0, "tried once"
    assert go(clock, day(1, 9)) == 1
    assert (state(claim), claim.reasons) == ("active", [])


def test_a_refusal_of_the_node_leaves_it_running(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim = at_work(cast, machine, clock)
    go(clock, day(0, 17, 56))
    go(clock, day(0, 18))
    machine.say(seen(claim.assignments.get(), "in_force", suspend_refused="It uses managed memory."))
    assert state(claim) == "active"
    for minute in (1, 7, 13):
        go(clock, day(0, 18, minute))
    assert state(claim) == "active"


@pytest.mark.parametrize("schedule", ["holidays 9-18", "weekdays 9-25", "weekdays 9-18 Europe/Bonn", "x" * 101])
def test_every_door_refuses_what_is_no_schedule(cast: Cast, machine: Machine, schedule: str) -> None:
    claim, _ = placed(cast, machine)
    body = {"tenant": "acme", "core_request": 10, "memory_mib": 100, "schedule": schedule}
    for answer in (
        cast.max.post("claims/", body),
        cast.max.patch(f"claims/{claim.uid}/", {"schedule": schedule}),
    ):
        assert (answer.status, list(answer.body["errors"])) == (400, ["schedule"])
    claim.refresh_from_db()
    assert claim.schedule == ""
