"""Pages of jobs: the list, one job with its output, a new one, its end."""

from apps.jobs.models import Job
from apps.quotas.models import Pool
from tests.cast import Cast, Machine
from tests.jobs.acting import end, fresh, send, started
from tests.pages.conftest import SignIn, browser

__all__ = ["browser"]

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
    Pool.objects.update(jobs=False)
    assert "No pool runs jobs" in browser("max").get("/jobs/new/").content.decode()
