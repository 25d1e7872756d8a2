"""The API of jobs: what it refuses, who sees what, and reading output."""

import pytest

from apps.jobs.models import Job
from apps.quotas.models import Pool, ResourceQuota
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine
from tests.jobs.acting import end, fresh, made, post, send, started


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"command": []}, "command"),
        ({"command": "true"}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["true", 1]}, "command"),
        ({"command": ["true"] * 257}, "command"),
        ({"environment": {"1X": "a"}}, "environment"),
        ({"environment": {"LD_PRELOAD": "mine.so"}}, "environment"),
        ({"environment": {"GPUCLOUD_CLAIM": "another"}}, "environment"),
        ({"environment": {"A": 1}}, "environment"),
        ({"environment": {f"A{n}": "" for n in range(65)}}, "environment"),
        ({"time_limit_seconds": 0}, "time_limit_seconds"),
        ({"retries": 11}, "retries"),
        ({"core_request": 50, "core_limit": 20}, "core_limit"),
        ({"comand": ["true"]}, "comand"),
    ],
)
def test_wrong_values_are_refused_by_name_and_nothing_is_made(
    cast: Cast, machine: Machine, asked: dict[str, object], field: str
) -> None:
    answer = post(cast.max, **asked)
    assert (answer.status, list(answer.body["errors"])) == (400, [field]), answer.body
    assert not Claim.objects.exists()


def test_a_command_that_no_frame_could_carry_is_refused(cast: Cast, machine: Machine) -> None:
    answer = post(cast.max, command=["true", *["x" * 30_000] * 3], environment={"A": "y" * 32_000})
    assert (answer.status, answer.code) == (422, "command-too-long")
    assert not Claim.objects.exists()


def test_jobs_are_for_pools_that_allow_them_and_for_members(cast: Cast, machine: Machine) -> None:
    assert post(cast.vera).status == 403
    assert post(cast.gus).status in (400, 403)
    Pool.objects.update(jobs=False)
    answer = post(cast.max)
    assert (answer.status, answer.code) == (409, "jobs-not-allowed")
    assert not Claim.objects.exists()


def test_a_quota_without_room_refuses_the_job_whole(cast: Cast, machine: Machine) -> None:
    ResourceQuota.objects.filter(tenant=cast.acme, resource="core_percent").update(hard=30)
    made(cast, core_request=20)
    answer = post(cast.max, core_request=20)
    assert (answer.status, answer.code) == (409, "quota-exceeded")
    assert Job.objects.count() == Claim.objects.count() == 1
    assert post(cast.max, core_request=20, when_over_quota="wait").body["reasons"]


def test_others_see_neither_job_nor_output_and_cannot_stop_it(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    for path in (f"jobs/{job.uid}/", f"jobs/{job.uid}/output/"):
        assert cast.gus.get(path).status == 404
        assert cast.vera.get(path).status == 200
        assert cast.nobody.get(path).status == 401
    assert cast.gus.post(f"jobs/{job.uid}/stop/", {}).status == 404
    assert cast.vera.post(f"jobs/{job.uid}/stop/", {}).status == 403
    assert cast.gus.get("jobs/").body["results"] == []
    assert fresh(job).stop_requested_at is None


def test_lists_are_narrowed_by_what_one_looks_for(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, name="train")
    other = made(cast, name="eval")
    end(machine, job)
    for query, names in {
        "": ["eval", "train"],
        "state=queued": ["eval"],
        "live=true": ["eval"],
        "live=false": ["train"],
        "name=train": ["train"],
        "node=gpu1": ["train"],
        "tenant=acme&pool=default": ["eval", "train"],
    }.items():
        assert [row["name"] for row in cast.max.get(f"jobs/?{query}").body["results"]] == names, query
    assert cast.max.get("jobs/?state=ended").status == 400
    assert fresh(other).state == "queued"


def test_a_follower_reads_on_and_no_character_is_cut(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    text = "Käse 漢字 🚀\n".encode()
    read, offset = "", 0
    for at in range(len(text)):
        send(machine, job, text[at : at + 1], offset=at)
        part = cast.max.get(f"jobs/{job.uid}/output/?offset={offset}").body
        assert "\ufffd" not in part["text"]
        assert not part["complete"]
        read, offset = read + part["text"], part["next_offset"]
    end(machine, job, output_bytes=len(text))
    part = cast.max.get(f"jobs/{job.uid}/output/?offset={offset}").body
    assert (read + part["text"], part["complete"]) == (text.decode(), True)


def test_output_in_pieces_is_read_from_any_offset_and_in_portions(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    for at in range(0, 100, 10):
        send(machine, job, bytes(range(48 + at // 10, 49 + at // 10)) * 10, offset=at)
    assert cast.max.get(f"jobs/{job.uid}/output/?offset=95&most=100").body["text"] == "9" * 5
    part = cast.max.get(f"jobs/{job.uid}/output/?offset=5&most=10").body
    assert (part["text"], part["next_offset"]) == ("0" * 5 + "1" * 5, 15)
    assert cast.max.get(f"jobs/{job.uid}/output/?offset=1000").body["text"] == ""
    assert cast.max.get(f"jobs/{job.uid}/output/?offset=-1").status == 400
    assert cast.max.get(f"jobs/{job.uid}/output/?until=3").status == 400


def test_bytes_that_are_no_text_are_replaced(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine)
    send(machine, job, b"a\xff\x00b\x80")
    end(machine, job, output_bytes=5)
    assert cast.max.get(f"jobs/{job.uid}/output/").body["text"] == "a\ufffd\x00b\ufffd"
