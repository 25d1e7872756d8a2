"""Jobs without a claim yet: those that wait for others, and arrays."""

from functools import partial

import pytest

from apps.jobs.models import Job, JobArray, JobDependency, JobState
from apps.jobs.services import reports, waiting
from apps.quotas.models import AuditEvent, ResourceQuota
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree, used
from tests.jobs.acting import end, fresh, made, place, post, report, runs, started
from tests.racing import race


def array_of(cast: Cast, **asked: object) -> JobArray:
    """Make an array; return it."""
    job = made(cast, **asked)
    assert job.array is not None
    return job.array


def states(array: JobArray) -> list[str]:
    return list(array.jobs.order_by("array_index").values_list("state", flat=True))


def finish(machine: Machine, job: Job, code: int = 0) -> None:
    report(machine, job, "running", started_at=1.0)
    end(machine, job, code=code)


def test_a_job_that_waits_has_no_claim_and_starts_when_the_other_has_succeeded(cast: Cast, machine: Machine) -> None:
    first = started(cast, machine, name="first")
    before = used(cast.acme)
    answer = post(cast.max, after=[str(first.uid)], name="second")
    assert (answer.status, answer.body["state"], answer.body["claim"]) == (201, "waiting", None)
    assert (answer.body["core_request"], answer.body["pool"]) == (20, "default")
    assert [(one["name"], one["any_end"]) for one in answer.body["waits_for"]] == [("first", False)]
    assert used(cast.acme) == before
    assert reports.follow() == 0
    end(machine, first)
    second = Job.objects.get(name="second")
    assert (second.state, second.claim and second.claim.state) == ("queued", "pending")
    machine.obey()
    place(cast, machine)
    assert [order.uid for order in runs(machine)] == [str(second.run_uid)]
    assert_books_agree()


@pytest.mark.parametrize(("how", "state"), [("after", "failed"), ("after_any", "queued")])
def test_a_failure_ends_what_needs_success_and_starts_what_does_not(
    cast: Cast, machine: Machine, how: str, state: str
) -> None:
    first = started(cast, machine, name="first")
    second = made(cast, **{how: [str(first.uid)]}, name="second")
    third = made(cast, after=[str(second.uid)], name="third")
    end(machine, first, code=3)
    for _ in range(2):
        reports.follow()
    second, third = fresh(second), fresh(third)
    assert second.state == state
    if state == "failed":
        assert second.reason == f"first ({first.uid}), after whose success it was to run, has ended as failed"
        assert (third.state, third.claim) == ("failed", None)
    else:
        assert third.state == "waiting"


def test_the_stop_of_a_job_stops_what_waited_for_its_success(cast: Cast, machine: Machine) -> None:
    first = made(cast)
    second = made(cast, after=[str(first.uid)])
    assert cast.max.post(f"jobs/{first.uid}/stop/", {}).body["state"] == "stopped"
    reports.follow()
    assert fresh(second).state == "stopped"
    # What waits is stopped at once, too.
    third = made(cast, after_any=[str(made(cast).uid)])
    assert cast.max.post(f"jobs/{third.uid}/stop/", {}).body["state"] == "stopped"


def test_what_has_ended_already_counts_at_once(cast: Cast, machine: Machine) -> None:
    first = end(machine, started(cast, machine))
    assert made(cast, after=[str(first.uid)]).state == "queued"


def test_jobs_of_others_cannot_be_waited_for_and_cycles_cannot_be_made(cast: Cast, machine: Machine) -> None:
    mine = made(cast)
    for api, tenant in ((cast.gus, "globex"), (cast.olga, "globex")):
        answer = post(api, after=[str(mine.uid)], tenant=tenant)
        assert (answer.status, answer.code) == (404, "no-such-job"), answer.body
    assert Job.objects.count() == 1
    second = made(cast, after=[str(mine.uid)])
    assert cast.max.patch(f"jobs/{mine.uid}/", {"after": [str(second.uid)]}).status == 405
    with pytest.raises(Exception, match="job_dependency_on_older"):
        JobDependency.objects.create(job=mine, on=second, any_end=False)


def test_without_room_in_the_quota_it_goes_on_waiting_and_says_why(cast: Cast, machine: Machine) -> None:
    first = started(cast, machine)
    second = made(cast, after=[str(first.uid)])
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").update(hard=20)
    end(machine, first)
    second = fresh(second)
    assert second.state == "waiting"
    assert second.reason is not None
    assert second.reason.startswith("Core quota exceeded")
    machine.obey()
    assert reports.follow() == 1
    assert (fresh(second).state, fresh(second).reason) == ("queued", None)
    assert_books_agree()


def test_what_can_never_be_is_refused_when_it_is_made(cast: Cast, machine: Machine) -> None:
    first = made(cast)
    answer = post(cast.max, after=[str(first.uid)], memory_mib=10_000_000)
    assert (answer.status, answer.code) == (422, "impossible-claim")
    assert (Job.objects.count(), Claim.objects.count()) == (1, 1)


def test_whoever_left_the_tenant_starts_nothing(cast: Cast, machine: Machine) -> None:
    first = started(cast, machine)
    second = made(cast, after=[str(first.uid)])
    assert second.user is not None
    second.user.memberships.all().delete()
    end(machine, first)
    assert fresh(second).state == "failed"
    assert "any more" in str(fresh(second).reason)


def test_an_array_runs_at_most_so_many_at_once_and_each_knows_its_index(cast: Cast, machine: Machine) -> None:
    array = array_of(cast, array_size=5, at_once=2, name="sweep", core_request=10)
    assert states(array) == ["queued", "queued", "waiting", "waiting", "waiting"]
    assert reports.follow() == 0
    for _ in range(5):
        machine.obey()
        place(cast, machine)
        [first, *_others] = array.jobs.open().order_by("pk")
        order = next(one for one in runs(machine) if one.uid == str(first.run_uid))
        assert order.environment["GPUCLOUD_ARRAY_INDEX"] == str(first.array_index)
        assert order.environment["GPUCLOUD_ARRAY_SIZE"] == "5"
        assert array.jobs.filter(state__in=["queued", "running"]).count() <= 2
        finish(machine, first)
    assert states(array) == ["succeeded"] * 5
    shown = cast.max.get(f"job-arrays/{array.uid}/").body
    assert (shown["state"], shown["jobs"], shown["name"]) == ("succeeded", {"succeeded": 5}, "sweep")
    assert [row["name"] for row in cast.max.get(f"jobs/?array={array.uid}&array_index=3").body["results"]] == [
        "sweep[3]"
    ]
    assert AuditEvent.objects.filter(action="job-array.create").count() == 1
    assert_books_agree()


def test_an_array_is_stopped_as_a_whole_and_others_have_no_say(cast: Cast, machine: Machine) -> None:
    array = array_of(cast, array_size=4, at_once=1)
    place(cast, machine)
    report(machine, array.jobs.get(array_index=0), "running")
    path = f"job-arrays/{array.uid}/stop/"
    assert (cast.gus.post(path, {}).status, cast.vera.post(path, {}).status) == (404, 403)
    assert cast.gus.get(f"job-arrays/{array.uid}/").status == 404
    answer = cast.max.post(path, {})
    assert (answer.status, answer.body["jobs"]) == (200, {"running": 1, "stopped": 3})
    end(machine, array.jobs.get(array_index=0), code=143)
    reports.follow()
    assert states(array) == ["stopped"] * 4
    assert cast.max.get("job-arrays/?live=true").body["results"] == []
    assert cast.max.get("job-arrays/?live=false").body["results"][0]["state"] == "stopped"


def test_a_job_may_wait_for_a_whole_array(cast: Cast, machine: Machine) -> None:
    array = array_of(cast, array_size=2, core_request=10)
    last = made(cast, after=[str(array.uid)])
    for index in range(2):
        assert fresh(last).state == "waiting"
        place(cast, machine)
        finish(machine, array.jobs.get(array_index=index))
    assert fresh(last).state == "queued"


def test_an_array_without_room_asks_once_and_goes_on(cast: Cast, machine: Machine) -> None:
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").update(hard=40)
    array = array_of(cast, array_size=4)
    assert states(array) == ["queued", "queued", "waiting", "waiting"]
    assert [bool(reason) for reason in array.jobs.order_by("pk").values_list("reason", flat=True)] == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"array_size": 0}, "array_size"),
        ({"array_size": 1001}, "array_size"),
        ({"at_once": 3}, "at_once"),
        ({"array_size": 3, "at_once": 0}, "at_once"),
        ({"after": ["train"]}, "after"),
        ({"after": ["00000000-0000-0000-0000-000000000000"] * 17}, "after"),
    ],
)
def test_wrong_arrays_and_dependencies_are_refused_by_name(
    cast: Cast, machine: Machine, asked: dict[str, object], field: str
) -> None:
    answer = post(cast.max, **asked)
    assert (answer.status, list(answer.body["errors"])) == (400, [field]), answer.body
    assert not Job.objects.exists()


def test_a_thousand_long_commands_are_refused(cast: Cast, machine: Machine) -> None:
    answer = post(cast.max, command=["true", "x" * 30_000], array_size=1000)
    assert (answer.status, answer.code) == (422, "command-too-long")


@pytest.mark.django_db(transaction=True)
def test_of_workers_that_find_a_job_ready_one_makes_its_claim(real_cast: Cast, machine_of: Machine) -> None:
    assert race_for_one(real_cast) == 1
    assert_books_agree()


@pytest.mark.django_db(transaction=True)
def test_control_without_the_rows_lock_several_claims_are_made(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "lock_waiting", read_unlocked)
    assert race_for_one(real_cast) > 1


def race_for_one(cast: Cast) -> int:
    """Let eight workers advance a job that is ready; return the number of claims."""
    first = made(cast)
    second = made(cast, after_any=[str(first.uid)])
    Job.objects.filter(pk=first.pk).update(state="stopped", ended_at=first.created_at)
    before = Claim.objects.count()
    race([lambda: waiting.advance(second.pk)] * 8)
    return Claim.objects.count() - before


@pytest.mark.django_db(transaction=True)
def test_workers_that_race_start_no_more_than_at_once(real_cast: Cast, machine_of: Machine) -> None:
    assert race_for_places(real_cast) == 3


@pytest.mark.django_db(transaction=True)
def test_control_without_the_arrays_lock_more_are_started(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "lock_waiting", read_unlocked)
    assert race_for_places(real_cast) > 3


def race_for_places(cast: Cast) -> int:
    """Let a worker for each job of an array of 12 start it; return how many have claims."""
    first = made(cast)
    array = array_of(cast, array_size=12, at_once=3, after_any=[str(first.uid)], core_request=1)
    Job.objects.filter(pk=first.pk).update(state="stopped", ended_at=first.created_at)
    race([partial(waiting.advance, pk) for pk in array.jobs.values_list("pk", flat=True)])
    return array.jobs.filter(claim__isnull=False).count()


def read_unlocked(pk: int) -> Job | None:
    """Read as `waiting.lock_waiting`, without its locks."""
    jobs = Job.objects.select_related("tenant", "pool", "array", "user")
    return jobs.filter(pk=pk, state=JobState.WAITING).first()
