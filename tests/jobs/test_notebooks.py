"""Notebooks at the server: what a node is told, and their end by the idle rule."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from apps.jobs.models import Job, JobState
from apps.quotas.models import AuditEvent
from tests.cast import Cast, Machine
from tests.jobs.acting import claim_of, end, fresh, place, post, report, runs, started
from tests.pages.conftest import SignIn, browser

__all__ = ["browser"]


def test_a_node_is_told_to_start_jupyter_with_a_token_of_the_run(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, kind="notebook", command=["/opt/jupyter", "--debug"], environment={"A": "b"})
    (run,) = runs(machine)
    assert run.notebook
    assert run.command[:2] == ["sh", "-c"]
    assert run.command[3:] == ["/opt/jupyter", "--debug"]
    assert run.environment["A"] == "b"
    token = run.environment["JUPYTER_TOKEN"]
    assert len(token) == 64
    # Nobody reads it anywhere: answers and audit log name what was given.
    answer = cast.max.get(f"jobs/{job.uid}/")
    assert token not in str(answer.body)
    assert (answer.body["kind"], answer.body["command"]) == ("notebook", ["/opt/jupyter", "--debug"])
    assert answer.body["environment_names"] == ["A"]
    # Another run has another one.
    end(machine, job, 1)
    assert fresh(job).state == JobState.FAILED


def test_a_notebook_has_defaults_and_a_job_has_nothing_of_a_notebook(cast: Cast, machine: Machine) -> None:
    notebook = post(cast.max, kind="notebook", command=[]).body
    assert (notebook["command"], notebook["idle_minutes"]) == (["jupyter"], 60)
    assert post(cast.max, kind="notebook", idle_minutes=None).body["idle_minutes"] is None
    job = post(cast.max).body
    assert (job["kind"], job["idle_minutes"], job["idle_since"]) == ("job", None, None)
    for asked, field in (
        ({"command": []}, "command"), ({"idle_minutes": 5}, "idle_minutes"), ({"kind": "lab"}, "kind"),
        ({"kind": "notebook", "array_size": 2}, "array_size"),
        ({"kind": "notebook", "idle_minutes": 0}, "idle_minutes"),
    ):  # fmt: skip
        answer = post(cast.max, **asked)
        assert (answer.status, field in str(answer.body)) == (400, True), answer.body
    assert [one["uid"] for one in cast.max.get("jobs/?kind=job").body["results"]] == [job["uid"]]


def test_an_unused_notebook_is_ended_by_its_rule_and_a_used_one_is_not(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, kind="notebook", idle_minutes=30)
    report(machine, job, "running", started_at=1.0, idle_seconds=29 * 60)
    found = fresh(job)
    assert found.stop_requested_at is None
    assert found.idle_since is not None
    assert timedelta(minutes=28) < timezone.now() - found.idle_since < timedelta(minutes=30)
    # It was used; then nobody knows; then it was not.
    report(machine, job, "running", started_at=1.0, idle_seconds=0)
    report(machine, job, "running", started_at=1.0)
    assert fresh(job).stop_requested_at is None
    report(machine, job, "running", started_at=1.0, idle_seconds=30 * 60)
    found = fresh(job)
    assert found.stop_requested_at is not None
    assert "not used for 30 minutes" in str(found.reason)
    assert runs(machine)[0].stop
    stop = AuditEvent.objects.get(action="job.stop")
    assert stop.actor == "system"
    ended = end(machine, job, 143)
    assert (ended.state, "not used" in str(ended.reason)) == (JobState.STOPPED, True)


def test_a_notebook_without_a_rule_and_a_job_go_on(cast: Cast, machine: Machine) -> None:
    notebook = started(cast, machine, kind="notebook", idle_minutes=None)
    job = started(cast, machine)
    for one in (notebook, job):
        report(machine, one, "running", started_at=1.0, idle_seconds=10**6)
        assert fresh(one).stop_requested_at is None
    assert fresh(job).idle_since is None


def test_a_person_starts_a_notebook_by_the_form_and_is_led_to_its_address(
    cast: Cast, machine: Machine, browser: SignIn, settings: Any
) -> None:
    settings.NOTEBOOKS_URL = "https://notebooks.example.org"
    max_ = browser("max")
    form = {"tenant": "acme", "pool": "default", "name": "lab", "core_request": "20", "memory_mib": "1"}
    answer = max_.post("/jobs/new-notebook/", {**form, "command": "jupyter", "idle_minutes": "15"})
    job = Job.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/jobs/{job.uid}/")
    assert (job.kind, job.command, job.idle_minutes) == ("notebook", ["jupyter"], 15)
    # It waits: there is nothing to open yet.
    assert "Open notebook" not in max_.get(f"/jobs/{job.uid}/").content.decode()
    assert max_.get(f"/jobs/{job.uid}/notebook/")["Location"] == f"/jobs/{job.uid}/"
    assert "/resize/" in max_.get(f"/jobs/{job.uid}/").content.decode()
    place(cast, machine)
    report(machine, job, "running", started_at=1.0, idle_seconds=0)
    page = max_.get(f"/jobs/{job.uid}/").content.decode()
    assert "Open notebook" in page
    assert f"/claims/{claim_of(job).uid}/resize/" in page
    assert "Nobody uses this notebook" not in page
    report(machine, job, "running", started_at=1.0, idle_seconds=10 * 60)
    assert "Nobody uses this notebook" in max_.get(f"/jobs/{job.uid}/").content.decode()
    link = max_.get(f"/jobs/{job.uid}/notebook/")["Location"]
    assert link.startswith(f"https://{job.uid}.notebooks.example.org/.gpucloud/enter?ticket=")
    assert "lab" in max_.get("/jobs/?kind=notebook").content.decode()
    # Who may only look is not led in; a stranger sees nothing; without an address it is said.
    assert "Open notebook" not in browser("vera").get(f"/jobs/{job.uid}/").content.decode()
    assert browser("vera").get(f"/jobs/{job.uid}/notebook/").status_code == 403
    assert browser("gus").get(f"/jobs/{job.uid}/notebook/").status_code == 404
    settings.NOTEBOOKS_URL = ""
    assert "NOTEBOOKS_URL" in max_.get(f"/jobs/{job.uid}/notebook/", follow=True).content.decode()


def test_no_idle_minutes_and_wrong_ones_in_the_form(cast: Cast, machine: Machine, browser: SignIn) -> None:
    form = {"tenant": "acme", "pool": "default", "name": "lab", "core_request": "20", "memory_mib": "1"}
    asked = {**form, "command": "/opt/conda/bin/jupyter --debug"}
    assert browser("max").post("/jobs/new-notebook/", {**asked, "idle_minutes": "0"}).status_code == 422
    assert browser("max").post("/jobs/new-notebook/", {**asked, "idle_minutes": ""}).status_code == 302
    job = Job.objects.get()
    assert (job.idle_minutes, job.command) == (None, ["/opt/conda/bin/jupyter", "--debug"])
