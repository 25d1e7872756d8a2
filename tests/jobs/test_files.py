"""Files of jobs: uploaded in pieces, stored once in a tenant, read by the node of a run; and git URLs."""

import base64
import gzip
import hashlib
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agent import wire
from apps.jobs.models import Job, JobFiles, JobFilesPiece
from apps.jobs.services import files as service
from apps.quotas.models import AuditEvent
from apps.quotas.services.tokens import keyed_digest
from tests.cast import Answer, Api, Cast, Machine
from tests.jobs.acting import end, made, place, post, runs, started
from tests.racing import outcomes, race

CONTENT = gzip.compress(b"train" * 1000, mtime=0) + bytes(300)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def announce(api: Api, data: bytes = CONTENT, **asked: Any) -> Answer:
    return api.post("job-files/", {"tenant": "acme", "sha256": digest(data), "size": len(data), **asked})


def send(api: Api, uid: str, data: bytes, offset: int = 0) -> Answer:
    """Send a piece."""
    return api.post(f"job-files/{uid}/pieces/", {"offset": offset, "content": base64.b64encode(data).decode()})


def credential_of(machine: Machine) -> dict[str, str]:
    """Enrol the node; return the header of its agent."""
    key = keyed_digest(digest(b"secret"))
    type(machine.node).objects.filter(pk=machine.node.pk).update(key_digest=key)
    return {"Authorization": f"Bearer gpn_{machine.node.uid}.secret"}


def uploaded(cast: Cast, data: bytes = CONTENT) -> JobFiles:
    uid = announce(cast.max, data).body["uid"]
    assert send(cast.max, uid, data).status == 200
    return JobFiles.objects.get(uid=uid)


def test_an_archive_is_stored_in_pieces_once_and_goes_on_where_it_stopped(cast: Cast, machine: Machine) -> None:
    answer = announce(cast.max)
    assert (answer.status, answer.body["stored_bytes"], answer.body["complete"]) == (201, 0, False)
    uid = answer.body["uid"]
    assert send(cast.max, uid, CONTENT[:100]).body["stored_bytes"] == 100
    assert announce(cast.max).body["stored_bytes"] == 100
    # A piece that was sent twice, and one after a gap.
    assert send(cast.max, uid, CONTENT[:100]).body["stored_bytes"] == 100
    gap = send(cast.max, uid, CONTENT[200:], 200)
    assert (gap.status, gap.code, gap.body["stored_bytes"]) == (409, "piece-after-gap", 100)
    assert post(cast.max, files=uid).code == "no-such-files"
    assert send(cast.max, uid, CONTENT[50:], 50).body["complete"]
    assert announce(cast.max).body["complete"]
    assert JobFiles.objects.count() == 1
    assert b"".join(bytes(piece.data) for piece in JobFilesPiece.objects.all()) == CONTENT


def test_the_node_of_its_run_is_told_of_the_files_and_reads_them_and_no_other(cast: Cast, machine: Machine) -> None:
    job = made(cast, files=str(uploaded(cast).uid))
    shown = cast.max.get(f"jobs/{job.uid}/").body
    assert shown["files"] == str(job.files and job.files.uid)
    place(cast, machine)
    [order] = runs(machine)
    assert order.files == wire.Files(sha256=digest(CONTENT), bytes=len(CONTENT))
    path = f"/agent/job-files/{order.uid}"
    credential = credential_of(machine)
    assert Client().get(path, headers=credential).content == CONTENT
    assert Client().get(f"{path}?offset=7", headers=credential).content == CONTENT[7:]
    assert Client().get(f"{path}?offset=x", headers=credential).status_code == 400
    assert Client().get(f"{path}?offset={len(CONTENT)}", headers=credential).status_code == 404
    assert Client().get(path).status_code == 401
    assert Client().get(path, headers={"Authorization": f"Bearer {cast.max.token}"}).status_code == 401
    other = Machine("gpu2", cast.pool).stay_online()
    assert Client().get(path, headers=credential_of(other)).status_code == 404
    end(machine, job)
    assert Client().get(path, headers=credential).status_code == 404


def test_files_of_other_tenants_do_not_exist(cast: Cast, machine: Machine) -> None:
    files = uploaded(cast)
    assert cast.gus.get(f"job-files/{files.uid}/").status == 404
    assert send(cast.gus, str(files.uid), b"x").status == 404
    assert send(cast.vera, str(files.uid), b"x").status == 403
    assert announce(cast.vera).status == 403
    assert post(cast.olga, files=str(files.uid), tenant="globex").code == "no-such-files"
    # The same content in another tenant is another archive.
    answer = announce(cast.gus, tenant="globex")
    assert (answer.status, answer.body["stored_bytes"]) == (201, 0)


def test_a_wrong_digest_and_what_is_no_archive_are_refused_and_removed(cast: Cast, machine: Machine) -> None:
    for data, sent, words in (
        (CONTENT, CONTENT[:-1] + b"x", "digest"),
        (b"no archive", b"no archive", ".tar.gz"),
    ):
        uid = announce(cast.max, data).body["uid"]
        answer = send(cast.max, uid, sent)
        assert (answer.status, answer.body["complete"], answer.body["stored_bytes"]) == (200, False, 0)
        assert words in answer.body["reason"]
        assert not JobFilesPiece.objects.exists()
    uid = announce(cast.max).body["uid"]
    assert send(cast.max, uid, CONTENT + b"more").code == "files-refused"


def test_what_is_too_large_is_refused_before_it_is_sent(
    cast: Cast, machine: Machine, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = announce(cast.max, size=(64 << 20) + 1)
    assert (answer.status, answer.code) == (422, "files-too-large")
    assert "64 MiB" in answer.body["detail"]
    settings.JOB_OUTPUT_MIB = 1
    assert announce(cast.max, size=1 << 20).status == 201
    assert announce(cast.max, b"other").code == "too-many-files"
    uid = JobFiles.objects.get().uid
    assert send(cast.max, str(uid), bytes(service.MOST_PIECE_BYTES + 1)).status == 400
    assert send(cast.max, str(uid), b"").status == 400


def test_files_are_kept_as_long_as_the_output_of_their_jobs(cast: Cast, machine: Machine) -> None:
    job = started(cast, machine, files=str(uploaded(cast).uid))
    unused = uploaded(cast, gzip.compress(b"unused", mtime=0))
    JobFiles.objects.update(updated_at=timezone.now() - timedelta(days=20))
    assert service.forget_files(days=14) == 1
    assert not JobFiles.objects.filter(pk=unused.pk).exists()
    end(machine, job)
    assert service.forget_files(days=14) == 0
    Job.objects.update(ended_at=timezone.now() - timedelta(days=15))
    assert service.forget_files(days=14) == 1
    assert not JobFilesPiece.objects.exists()
    assert Job.objects.get().files is None


@pytest.mark.django_db(transaction=True)
def test_an_upload_by_several_at_once_is_stored_once(real_cast: Cast, machine_of: Machine) -> None:
    results, stored = race_upload(real_cast)
    assert outcomes(results) == {"JobFiles": 6}
    assert stored == CONTENT


@pytest.mark.django_db(transaction=True)
def test_control_without_the_rows_lock_uploads_collide(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = type(JobFiles.objects.all())
    monkeypatch.setattr(rows, "select_for_update", lambda self, **_: self)
    results, _ = race_upload(real_cast)
    assert outcomes(results)["IntegrityError"] > 0


def race_upload(cast: Cast) -> tuple[list[Any], bytes]:
    """Let six send the whole archive."""
    principal = cast.member
    files = service.announce_files(principal=principal, tenant=cast.acme, sha256=digest(CONTENT), size=len(CONTENT))
    act = partial(service.store_piece, principal=principal, files=files, offset=0, content=CONTENT)
    results = race([act] * 6)
    return results, b"".join(bytes(piece.data) for piece in files.pieces.order_by("offset"))


def test_a_git_url_is_shown_and_told_to_the_node(cast: Cast, machine: Machine) -> None:
    made(cast, git_url="https://git.example.org/vision/train.git", git_ref="v1.2")
    place(cast, machine)
    [order] = runs(machine)
    assert order.git == wire.Git(url="https://git.example.org/vision/train.git", ref="v1.2")
    assert AuditEvent.objects.filter(action="job.create", after__git_ref="v1.2").exists()
    assert cast.max.get("jobs/").body["results"][0]["git_url"] == "https://git.example.org/vision/train.git"


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"git_url": "https://max:secret@git.example.org/x"}, "git_url", "GIT_PASSWORD"),
        ({"git_url": "https://token@git.example.org/x"}, "git_url", "GIT_PASSWORD"),
        ({"git_url": "ssh://git:secret@git.example.org/x"}, "git_url", "GIT_PASSWORD"),
        ({"git_url": "ext::sh -c id"}, "git_url", "https://"),
        ({"git_url": "-u"}, "git_url", "https://"),
        ({"git_url": "https://x/a b"}, "git_url", "https://"),
        ({"git_url": "https://[x"}, "git_url", "no URL"),
        ({"git_url": "https://x/y", "git_ref": "--upload-pack=id"}, "git_ref", ""),
        ({"git_url": "https://x/y", "git_ref": "a..b"}, "git_ref", ""),
        ({"git_ref": "main"}, "git_ref", "git_url"),
        ({"git_url": "https://x/y", "image": "registry.example.com/x:1"}, "image", "own files"),
        ({"git_url": "https://x/y", "files": "00000000-0000-0000-0000-000000000000"}, "git_url", "not both"),
    ],
)
def test_wrong_git_urls_are_refused_with_what_to_do(
    cast: Cast, machine: Machine, asked: dict[str, object], field: str, words: str
) -> None:
    answer = post(cast.max, **asked)
    assert (answer.status, list(answer.body["errors"])) == (400, [field]), answer.body
    assert words in answer.body["errors"][field][0]
