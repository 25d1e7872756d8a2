"""A job from its creation to its end: what its node is told, and what becomes of its claim."""

from datetime import timedelta

from django.utils import timezone

from apps.jobs.models import Job, JobOutput
from apps.jobs.services import reports
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import Cast, Machine, ask, assert_books_agree
from tests.jobs.acting import claim_of, end, fresh, made, place, post, report, runs, send, started
from tests.jobs.conftest import make_machine


def test_a_job_runs_under_a_claim_of_its_own_which_ends_with_it(cast: Cast, machine: Machine) -> None:
    answer = post(cast.max, command=["python", "-c", "print(1)"], environment={"SEED": "7"}, name="train")
    assert (answer.status, answer.body["state"], answer.body["claim_state"]) == (201, "queued", "pending")
    assert "environment" not in answer.body
    assert answer.body["environment_names"] == ["SEED"]
    job = Job.objects.get()
    assert runs(machine) == []
    place(cast, machine)
    [order] = runs(machine)
    assert (order.command, order.environment, order.owner) == (
        ["python", "-c", "print(1)"],
        {"SEED": "7"},
        cast.acme.pk,
    )
    assert (order.uid, order.started, order.stop, order.stored) == (str(job.run_uid), False, False, 0)
    report(machine, job, "running", started_at=1.0)
    assert runs(machine)[0].started
    assert send(machine, job, b"hello\n") == 6
    job = end(machine, job, output_bytes=6)
    assert (job.state, job.exit_code, claim_of(job).state) == ("succeeded", 0, "releasing")
    assert runs(machine) == []
    machine.obey()
    assert claim_of(job).state == "released"
    actions = list(AuditEvent.objects.filter(action__startswith="job.").order_by("pk").values_list("action", flat=True))
    assert actions == ["job.create", "job.end"]
    assert AuditEvent.objects.filter(action="job.create", after__environment=["SEED"]).exists()
    assert_books_agree()


def test_a_run_has_ended_once_its_output_is_here(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    job = end(machine, job, code=3, output_bytes=10)
    assert job.state == "running"
    assert runs(machine)[0].stored == 0
    assert send(machine, job, b"01234") == 5
    assert runs(machine)[0].stored == 5
    # A piece that was sent twice, one that overlaps, and one after a gap.
    assert send(machine, job, b"01234") == 5
    assert send(machine, job, b"9", offset=9) == 5
    assert send(machine, job, b"3456789", offset=3) == 10
    job = fresh(job)
    assert (job.state, job.exit_code, job.reason) == ("failed", 3, "exit code 3")
    assert b"".join(bytes(piece.data) for piece in JobOutput.objects.all()) == b"0123456789"


def test_a_failed_run_is_repeated_as_often_as_its_owner_said(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, retries=1)
    first = job.run_uid
    send(machine, job, b"first")
    job = end(machine, job, code=1, output_bytes=5)
    assert (job.state, job.attempt, job.runs, job.exit_code) == ("queued", 2, 2, None)
    assert job.reason == "try 1 of 2 failed: exit code 1"
    assert job.run_uid != first
    [order] = runs(machine)
    assert (order.uid, order.started, order.stored) == (str(job.run_uid), False, 0)
    # What the first run still says is nobody's.
    assert send(machine, job, b"second") == 6
    report(machine, job, "running")
    job = end(machine, job, code=2, output_bytes=6)
    assert (job.state, job.exit_code) == ("failed", 2)
    parts = [cast.max.get(f"jobs/{job.uid}/output/?run={number}").body["text"] for number in (1, 2)]
    assert parts == ["first", "second"]


def test_a_preempted_run_begins_again_and_no_retry_is_counted(cast: Cast, machine: Machine) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True, preemption_grace_seconds=0)
    job = started(cast, machine, core_request=100, gpu_count=4)
    send(machine, job, b"lost with the run")
    urgent = ask(cast, name="urgent", priority=5, core_request=100, gpu_count=4)
    run_round(cast.pool)
    for _ in range(2):
        preemption.drive()
    machine.obey()
    assert runs(machine) == []
    reports.follow()
    job = fresh(job)
    assert (job.state, job.attempt, job.runs, job.output_bytes) == ("queued", 1, 2, 0)
    assert job.reason == "its claim was preempted"
    assert reports.follow() == 0
    place(cast, machine)
    release_claim(principal=SYSTEM, claim=urgent)
    for _ in range(2):
        place(cast, machine)
    [order] = runs(machine)
    assert (order.uid, order.started) == (str(job.run_uid), False)
    report(machine, job, "running")
    assert end(machine, job).state == "succeeded"


def test_the_release_of_its_claim_stops_it(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    release_claim(principal=cast.member, claim=claim_of(job))
    machine.obey()
    assert reports.follow() == 1
    job = fresh(job)
    assert job.state == "stopped"
    assert job.reason is not None
    assert "Released by" in job.reason
    assert reports.follow() == 0


def test_an_end_that_was_reported_counts_though_the_claim_is_gone(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    end(machine, job, output_bytes=100)
    send(machine, job, b"x" * 60)
    release_claim(principal=cast.member, claim=claim_of(job))
    machine.obey()
    reports.follow()
    job = fresh(job)
    assert (job.state, job.exit_code, job.output_bytes, job.dropped_bytes) == ("succeeded", 0, 60, 40)


def test_a_stop_ends_what_runs_and_at_once_what_waits(cast: Cast, machine: Machine) -> None:
    waiting = made(cast)
    answer = cast.max.post(f"jobs/{waiting.uid}/stop/", {})
    assert (answer.status, answer.body["state"], answer.body["claim_state"]) == (200, "stopped", "released")
    job = started(cast, machine)
    frame = claim_of(job).assignments.get().gpu.node.frame
    for _ in range(2):
        answer = cast.max.post(f"jobs/{job.uid}/stop/", {})
        assert (answer.status, answer.body["state"]) == (200, "running")
        assert answer.body["stop_requested_at"]
    machine.node.refresh_from_db()
    assert machine.node.frame == frame + 1
    assert runs(machine)[0].stop
    job = end(machine, job, code=143)
    assert (job.state, job.exit_code) == ("stopped", 143)
    assert job.reason is not None
    assert job.reason.startswith("stopped by")


def test_a_refused_run_fails_with_the_nodes_words(cast: Cast, machine: Machine) -> None:
    job = made(cast)
    place(cast, machine)
    report(machine, job, "refused", reason="This node runs no jobs.")
    job = fresh(job)
    assert (job.state, job.reason, claim_of(job).state) == ("failed", "This node runs no jobs.", "releasing")


def test_another_node_has_no_say(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    other = make_machine(cast, "gpu2")
    report(other, job, "ended", exit_code=0)
    assert fresh(job).state == "running"
    assert send(other, job, b"forged") is None
    assert runs(other) == []


def test_jobs_wait_for_a_node_that_runs_them(cast: Cast, machine: Machine) -> None:
    type(machine.node).objects.update(jobs=False)
    answer = post(cast.max)
    assert (answer.status, answer.code) == (422, "impossible-claim")
    assert "gpucloud.io/jobs" in answer.body["detail"]


def test_old_output_is_forgotten(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, retries=1)
    send(machine, job, b"x")
    end(machine, job, code=1, output_bytes=1)
    report(machine, job, "running")
    send(machine, job, b"yz")
    job = end(machine, job, output_bytes=2)
    assert (job.stored_bytes, JobOutput.objects.count()) == (3, 2)
    assert reports.forget_output(days=14, mib=64) == 0
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - timedelta(days=15))
    assert reports.forget_output(days=14, mib=64) == 1
    part = cast.max.get(f"jobs/{job.uid}/output/").body
    assert (part["text"], part["complete"]) == ("", True)
    assert not JobOutput.objects.exists()
    assert reports.forget_output(days=14, mib=64) == 0


def test_a_tenant_keeps_so_much_output_and_the_oldest_goes_first(cast: Cast, machine: Machine) -> None:
    jobs = []
    for number in range(4):
        job = started(cast, machine, name=f"j{number}")
        send(machine, job, b"x" * 1000)
        jobs.append(job if number == 3 else end(machine, job, output_bytes=1000))
        machine.obey()
    Job.objects.update(stored_bytes=40 << 20)
    assert reports.forget_output(days=14, mib=100) == 2
    assert [fresh(job).stored_bytes for job in jobs] == [0, 0, 40 << 20, 40 << 20]
    # What still runs is never cut.
    assert reports.forget_output(days=14, mib=1) == 1
    assert [fresh(job).stored_bytes for job in jobs] == [0, 0, 0, 40 << 20]


def test_the_claim_of_a_job_does_not_leave_its_node(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    Claim.objects.filter(job=job).update(movable=True)
    answer = cast.max.post(f"claims/{claim_of(job).uid}/move/", {"anywhere": True})
    assert (answer.status, answer.code) == (409, "cannot-move")
    assert "job" in answer.body["detail"]
