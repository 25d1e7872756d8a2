"""Jobs in container images: their nodes, their order, the digest of what ran, bad names at each door."""

import pytest
from msgspec import UNSET

from apps.jobs.models import Job
from apps.nodes.models import Node
from tests.cast import Cast, Machine
from tests.jobs.acting import end, fresh, made, place, post, report, runs
from tests.jobs.test_pages import FORM
from tests.pages.conftest import SignIn, browser

__all__ = ["browser"]

IMAGE = "registry.example.com/team/train:2"
DIGEST = f"registry.example.com/team/train@sha256:{'0' * 64}"


def test_it_goes_only_to_a_node_that_runs_images_and_its_digest_is_kept(cast: Cast, machine: Machine) -> None:
    answer = post(cast.max, image=IMAGE)
    assert (answer.status, "gpucloud.io/images=true" in answer.body["detail"]) == (422, True)
    # One without an image does not need such a node.
    plain = made(cast)
    place(cast, machine)
    assert [(one.uid, one.image) for one in runs(machine)] == [(str(plain.run_uid), "")]
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    job = made(cast, image=IMAGE)
    Node.objects.filter(pk=machine.node.pk).update(images=False)
    place(cast, machine)
    assert len(runs(machine)) == 1
    assert "gpucloud.io/images" in str(cast.max.get(f"jobs/{job.uid}/").body["reasons"])
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    place(cast, machine)
    assert {one.image for one in runs(machine)} == {"", IMAGE}
    report(machine, job, "running", started_at=1.0, image=DIGEST)
    assert fresh(job).image_digest == DIGEST
    end(machine, job)
    body = cast.max.get(f"jobs/{job.uid}/").body
    assert (body["state"], body["image"], body["image_digest"]) == ("succeeded", IMAGE, DIGEST)
    assert cast.max.get(f"jobs/{plain.uid}/").body["image"] is None


def test_a_report_without_an_image_changes_nothing(cast: Cast, machine: Machine) -> None:
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    job = made(cast, image=IMAGE)
    place(cast, machine)
    report(machine, job, "running", started_at=1.0, image=DIGEST)
    report(machine, job, "running", started_at=1.0, image=UNSET)
    assert fresh(job).image_digest == DIGEST


def test_its_claim_has_time_for_the_pull(cast: Cast, machine: Machine) -> None:
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    plain, other = made(cast, time_limit_seconds=100), made(cast, time_limit_seconds=100, image=IMAGE)
    assert plain.claim is not None
    assert other.claim is not None
    assert (plain.claim.time_limit_seconds, other.claim.time_limit_seconds) == (160, 160 + 900)


def test_those_of_an_array_have_it_too(cast: Cast, machine: Machine) -> None:
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    post(cast.max, image=IMAGE, array_size=3)
    assert list(Job.objects.values_list("image", flat=True)) == [IMAGE] * 3
    assert all(job.share.node_selector["gpucloud.io/images"] == "true" for job in Job.objects.all())


@pytest.mark.parametrize("image", ["debian", "dir:/etc", "-v=/:/host", "a.b/c d", "a.b/../c", "a.b/" + "c" * 300, 1])
def test_a_bad_name_is_refused(cast: Cast, machine: Machine, image: object) -> None:
    answer = post(cast.max, image=image)
    assert answer.status == 400
    assert "image" in answer.body["errors"], answer.body
    assert not Job.objects.exists()


def test_the_form_takes_it_and_the_page_shows_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    Node.objects.filter(pk=machine.node.pk).update(images=True)
    max_ = browser("max")
    answer = max_.post("/jobs/new/", {**FORM, "command": "true", "image": f" {IMAGE} "})
    job = Job.objects.get()
    assert (answer.status_code, job.image) == (302, IMAGE)
    assert IMAGE in max_.get(f"/jobs/{job.uid}/").content.decode()
    answer = max_.post("/jobs/new/", {**FORM, "command": "true", "image": "debian"})
    assert answer.status_code == 422
    assert "Name an image with its registry" in answer.content.decode()
    assert Job.objects.count() == 1
