"""Pages of jobs: the list, one job with its output, a new one, its end."""

import re

from django.test import Client

from apps.jobs.models import Job, JobArray
from apps.quotas.models import Pool
from tests.cast import Cast, Machine
from tests.jobs.acting import claim_of, end, fresh, send, started
from tests.pages.conftest import SignIn, browser

__all__ = ["browser"]

UNKNOWN = "00000000-0000-0000-0000-000000000000"
FORM = {"tenant": "acme", "pool": "default", "name": "train", "core_request": "20", "memory_mib": "1", "retries": "0"}


def test_a_person_runs_a_job_follows_it_and_stops_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")
    assert "gpucloud job run" in max_.get("/jobs/").content.decode()
    answer = max_.post("/jobs/new/", {**FORM, "command": "sh -c 'echo $A; exit 3'", "environment": "A=s3cret\n"})
    job = Job.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/jobs/{job.uid}/")
    assert (job.command, job.environment) == (["sh", "-c", "echo $A; exit 3"], {"A": "s3cret"})
    page = max_.get(f"/jobs/{job.uid}/").content.decode()
    assert "It waits" in page
    assert "s3cret" not in page
    assert "s3cret" not in browser("olga").get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert max_.post(f"/jobs/{job.uid}/stop/").status_code == 302
    assert fresh(job).state == "stopped"
    assert "Stop job" not in max_.get(f"/jobs/{job.uid}/").content.decode()


def test_output_is_text_and_never_markup(cast: Cast, machine: Machine, browser: SignIn) -> None:
    job = started(cast, machine)
    send(machine, job, b"<script>alert(1)</script>\n")
    end(machine, job, code=3, output_bytes=26)
    max_ = browser("max")
    page = max_.get(f"/jobs/{job.uid}/").content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "exit code 3" in page
    answer = max_.get(f"/jobs/{job.uid}/output/")
    assert answer["Content-Type"].startswith("text/plain")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert b"".join(answer.streaming_content) == b"<script>alert(1)</script>\n"  # type: ignore[attr-defined]


def test_wrong_input_stays_in_the_form_with_a_word_beside_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")
    for wrong, said in (
        ({"command": "sh -c 'echo"}, "A quotation mark is missing."),
        ({"command": " "}, "This field is required."),
        ({"environment": "A"}, "Write NAME=VALUE"),
        ({"environment": "LD_PRELOAD=x"}, "is set by the launch"),
        ({"git_url": "https://a:b@x/y"}, "GIT_PASSWORD"),
        ({"git_ref": "main"}, "This is for a clone"),
        ({"uploaded": UNKNOWN}, "upload them first"),
        ({"uploaded": "x"}, "valid UUID"),
        ({"uploaded": UNKNOWN, "git_url": "https://x/y"}, "Give files or a git URL, not both."),
        ({"uploaded": UNKNOWN, "image": "docker.io/library/debian:12"}, "A container brings its own files."),
        ({"core_request": "101"}, "less than or equal to 100"),
    ):
        answer = max_.post("/jobs/new/", {**FORM, "command": "true", **wrong})
        assert answer.status_code == 422, wrong
        assert said in answer.content.decode(), wrong
    assert not Job.objects.exists()


def test_who_may_see_and_act(cast: Cast, machine: Machine, browser: SignIn) -> None:
    job = started(cast, machine)
    for path in (f"/jobs/{job.uid}/", f"/jobs/{job.uid}/output/"):
        assert browser("gus").get(path).status_code == 404
    assert browser("gus").post(f"/jobs/{job.uid}/stop/").status_code == 404
    vera = browser("vera")
    assert "Stop job" not in vera.get(f"/jobs/{job.uid}/").content.decode()
    assert vera.post(f"/jobs/{job.uid}/stop/").status_code == 403
    # A terminal is for who may act, while the job runs.
    assert _terminal_parts(browser("max"), job) == {"data-opens-terminal", 'id="terminal"', "terminal.js"}
    assert not _terminal_parts(vera, job)
    end(machine, job, code=0, output_bytes=0)
    assert not _terminal_parts(browser("max"), job)
    Pool.objects.update(jobs=False)
    assert "No pool runs jobs" in browser("max").get("/jobs/new/").content.decode()


def _terminal_parts(reader: Client, job: Job) -> set[str]:
    """Return what the job's page has of a terminal."""
    page = reader.get(f"/jobs/{job.uid}/").content.decode()
    return {part for part in ("data-opens-terminal", 'id="terminal"', "terminal.js") if part in page}


def test_a_jobs_page_shows_its_repository(cast: Cast, machine: Machine, browser: SignIn) -> None:
    url = "https://git.example.org/train.git"
    answer = browser("max").post("/jobs/new/", {**FORM, "command": "true", "git_url": url, "git_ref": "v1"})
    assert (Job.objects.get().git_url, Job.objects.get().git_ref) == (url, "v1")
    assert f"{url} @ v1" in browser("max").get(answer["Location"]).content.decode()


def test_an_array_is_made_shown_at_a_glance_and_stopped(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")
    answer = max_.post("/jobs/new/", {**FORM, "command": "true", "array_size": "12", "at_once": "2"})
    array = JobArray.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/job-arrays/{array.uid}/")
    page = max_.get(f"/job-arrays/{array.uid}/").content.decode()
    assert page.count('class="array-cell ') == 12
    assert page.count('title="11: Waiting"') == 1
    # The bar shows that the page belongs to the jobs.
    assert re.search(r'href="/jobs/"\s+aria-current="true"', page)
    assert "train[11]" in max_.get(f"/jobs/{array.jobs.get(array_index=11).uid}/").content.decode()
    assert browser("gus").get(f"/job-arrays/{array.uid}/").status_code == 404
    assert browser("vera").post(f"/job-arrays/{array.uid}/stop/").status_code == 403
    assert max_.post(f"/job-arrays/{array.uid}/stop/").status_code == 302
    assert set(array.jobs.values_list("state", flat=True)) == {"stopped"}
    assert "Stop all" not in max_.get(f"/job-arrays/{array.uid}/").content.decode()


def test_a_job_after_another_says_on_its_page_what_it_waits_for(cast: Cast, machine: Machine, browser: SignIn) -> None:
    first = started(cast, machine)
    max_ = browser("max")
    answer = max_.post("/jobs/new/", {**FORM, "command": "true", "after": f" {first.uid},"})
    page = max_.get(answer["Location"]).content.decode()
    assert "For the success of" in page
    assert f"/jobs/{first.uid}/" in page
    for wrong, said in (({"after": "train"}, "valid UUID"), ({"at_once": "2"}, "how many jobs it has")):
        answer = max_.post("/jobs/new/", {**FORM, "command": "true", **wrong})
        assert answer.status_code == 422
        assert said in answer.content.decode()
    assert max_.get("/jobs/?state=waiting").content.decode().count('id="job-') == 1


def test_a_new_notebook_begins_with_the_program_of_the_last_one(cast: Cast, machine: Machine, browser: SignIn) -> None:
    max_ = browser("max")

    def shown(client: Client) -> str:
        return str(client.get("/jobs/new-notebook/").context["form"]["command"].value())

    assert shown(max_) == "jupyter"
    values = {name: value for name, value in FORM.items() if name != "retries"}
    assert max_.post("/jobs/new-notebook/", {**values, "command": "'/opt/my lab/jupyter' --debug"}).status_code == 302
    assert shown(max_) == "'/opt/my lab/jupyter' --debug"
    assert shown(browser("anna")) == "jupyter"
    job = Job.objects.get()
    assert f"/jobs/{job.uid}/" in max_.get(f"/claims/{claim_of(job).uid}/").content.decode()
