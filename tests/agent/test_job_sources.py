"""Sources of a run's directory: files of archives, also of hostile ones, and clones of real repositories."""

import asyncio
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.jobs import source
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.git_server import served_with_password
from tests.agent.jobs import ME, Jobs, settings
from tests.agent.stage import Stage, eventually


@pytest.fixture
async def stage(run_dir: Path, control: Control) -> AsyncIterator[Stage]:
    """Return a node with a virtual node's file that its users can open."""
    root = run_dir / "machine"
    root.mkdir()
    it = Stage(root, run_dir, control, agents=forked.server())
    it.node_file.chmod(0o666)
    yield it
    it.close()


@pytest.fixture
async def jobs(stage: Stage) -> AsyncIterator[Jobs]:
    """Return the runs of an agent that starts programs of jobs, with one claim."""
    stage.start(**settings(stage))
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    it = Jobs(stage, link)
    yield it
    await it.close()


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return an archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **facts: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def zip_of(name: str, data: bytes = b"x") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return made.getvalue()


GOOD = tar_of((member("train.sh", mode=0o4755), b"echo trains; pwd; id -u; ls -l train.sh"), (member("data/x"), b"1"))


def files_of(data: bytes) -> wire.Files:
    return wire.Files(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


async def want_files(jobs: Jobs, data: bytes, *command: str) -> str:
    """Want a run with an archive that the server has."""
    jobs.stage.control.archive = data
    return await jobs.want(*command, files=files_of(data))


async def test_files_are_unpacked_as_the_runs_user_before_the_command(jobs: Jobs) -> None:
    uid = await want_files(jobs, GOOD, "sh", "train.sh")
    said = (await jobs.output(uid)).splitlines()
    assert said[:3] == ["trains", str(jobs.directory(uid) / "home"), str(ME)]
    # Set-id bits are dropped.
    assert said[3].startswith("-rwx")
    assert (jobs.directory(uid) / "home/data/x").stat().st_uid == ME
    assert jobs.stage.control.credentials == {jobs.link.authorization}


async def test_a_zip_does_too(jobs: Jobs) -> None:
    uid = await want_files(jobs, zip_of("a/train.sh", b"echo zipped"), "sh", "a/train.sh")
    assert await jobs.output(uid) == "zipped\n"


def bomb() -> bytes:
    """Return an archive of one file that is larger than what may be unpacked, and small."""
    head = member("zeros", size=40 << 20).tobuf()
    return gzip.compress(head + bytes(40 << 20))


def header_bomb() -> bytes:
    """Return an archive whose extended header alone has 256 MiB, which the library reads into memory."""
    return gzip.compress(member("h", tarfile.XHDTYPE, size=256 << 20).tobuf() + bytes(256 << 20), 1)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "absolute": (lambda: tar_of((member("/etc/x"), b"x"), (member("../x"), b"x")), "absolute"),
    "parent": (lambda: tar_of((member("a/../../x"), b"x")), "outside"),
    "link": (lambda: tar_of((member("l", tarfile.SYMTYPE, linkname="/etc"), b"")), "absolute"),
    "link that leaves": (lambda: tar_of((member("l", tarfile.SYMTYPE, linkname="../.."), b"")), "outside"),
    "hard link": (lambda: tar_of((member("l", tarfile.LNKTYPE, linkname="../order.json"), b"")), "outside"),
    "through a link": (
        lambda: tar_of(
            (member("a", tarfile.DIRTYPE), b""),
            (member("a/up", tarfile.SYMTYPE, linkname=".."), b""),
            (member("a/up/../../x"), b"x"),
        ),
        "outside",
    ),
    "device": (lambda: tar_of((member("d", tarfile.CHRTYPE, devmajor=1, devminor=3), b"")), "special file"),
    "fifo": (lambda: tar_of((member("f", tarfile.FIFOTYPE), b"")), "special file"),
    "bomb": (bomb, "larger than"),
    "header bomb": (header_bomb, "memory"),
    "many": (lambda: tar_of(*((member(f"{number}"), b"") for number in range(30))), "more than"),
    "truncated": (lambda: GOOD[:-20], "end-of-stream"),
    "no archive": (lambda: gzip.compress(b"hello" * 1000), "header"),
    "zip parent": (lambda: zip_of("../x"), "outside"),
    "zip bomb": (lambda: zip_of("x", bytes(40 << 20)), "larger than"),
}


@pytest.mark.parametrize("filtered", [True, False], ids=["data filter", "Python 3.11.2"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_are_refused_in_words(
    kind: str, filtered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filtered:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(source, "MOST_ENTRIES", 20)
    monkeypatch.setattr(source, "MOST_BYTES", 4 << 30 if kind == "header bomb" else 32 << 20)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    monkeypatch.setattr(source, "MEMORY_BYTES", pages * os.sysconf("SC_PAGE_SIZE") + (64 << 20))
    home = tmp_path / "run" / "home"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    make, words = HOSTILE[kind]
    (tmp_path / "archive").write_bytes(make())
    descriptor = source.open_files(tmp_path / "archive")
    assert descriptor is not None
    with pytest.raises(source.Refused, match=words) as refused:
        source.prepare({}, descriptor, {})
    assert str(refused.value).startswith("its files were not unpacked: ")
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "run"}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["home"]
    assert sum(path.lstat().st_size for path in home.rglob("*")) <= 32 << 20


def test_without_the_filter_an_entry_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for one in (
        member("a/train.sh", mode=0o4777),
        member("d", tarfile.DIRTYPE, mode=0o2777),
        member("l", tarfile.SYMTYPE, linkname="a/train.sh"),
    ):
        if hasattr(tarfile, "data_filter"):
            filtered = tarfile.data_filter(one, str(tmp_path))
            made = source.as_data(one)
            assert (made.name, made.linkname, made.type) == (filtered.name, filtered.linkname, filtered.type)
            assert filtered.mode in (None, made.mode)


async def test_a_hostile_archive_fails_the_run_and_its_command_does_not_begin(jobs: Jobs) -> None:
    uid = await want_files(jobs, HOSTILE["parent"][0](), "touch", "begun")
    ended = await jobs.reach(uid, "ended")
    assert ended.exit_code == 125
    assert "outside" in str(ended.reason)
    assert str(ended.reason).startswith("its files were not unpacked: ")
    assert not (jobs.directory(uid) / "home/begun").exists()
    assert not (jobs.directory(uid) / "x").exists()


async def test_an_agent_that_is_killed_in_the_fetch_goes_on_where_it_stopped(jobs: Jobs) -> None:
    control = jobs.stage.control
    control.piece_bytes, control.pieces_before_pause = 32, 3
    uid = await want_files(jobs, GOOD, "sh", "train.sh")
    await eventually(lambda: len(control.offsets) == 4)
    await jobs.stage.kill()
    control.pieces_before_pause = 1 << 30
    await jobs.start_again()
    await jobs.send()
    assert (await jobs.output(uid)).startswith("trains\n")
    # Of all pieces only the one under way was asked for twice.
    assert control.offsets == sorted(control.offsets)
    assert len(control.offsets) == len(set(control.offsets)) + 1


async def test_what_is_not_what_was_uploaded_never_begins_and_comes_again(jobs: Jobs) -> None:
    jobs.stage.control.archive = bytes(len(GOOD))
    uid = await jobs.want("sh", "train.sh", files=files_of(GOOD))
    await eventually(lambda: "not what was uploaded" in str(jobs.reason_of(uid)))
    jobs.stage.control.archive = GOOD
    assert (await jobs.output(uid)).startswith("trains\n")
    del jobs.runs[uid]
    await jobs.send()
    await eventually(lambda: not list(jobs.root.iterdir()))


@pytest.fixture
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with two commits and a tag; everybody may read it."""
    root = tmp_path_factory.mktemp("git") / "train.git"
    work = root.with_name("work")
    for place in (root.parent, *root.parent.parents[:2]):
        place.chmod(place.stat().st_mode | 0o555)
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@x", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x"}
    environment = {"PATH": os.environ["PATH"], "HOME": str(root.parent), **who}

    def git(*words: str, at: Path = work) -> None:
        subprocess.run(["git", *words], cwd=at, env=environment, check=True, capture_output=True)

    work.mkdir()
    git("init", "--quiet", "--initial-branch", "main")
    for number in (1, 2):
        (work / "train.sh").write_text(f"echo version {number}\n")
        git("add", ".")
        git("commit", "--quiet", "-m", f"version {number}")
        if number == 1:
            git("tag", "v1")
    git("clone", "--quiet", "--bare", str(work), str(root))
    git("config", "http.receivepack", "false", at=root)
    return root


@pytest.fixture
async def daemon(repository: Path, unused_tcp_port: int) -> AsyncIterator[str]:
    """Serve the repository by git's own daemon on loopback; return its URL."""
    words = ("daemon", "--export-all", "--listen=127.0.0.1", f"--port={unused_tcp_port}", "--reuseaddr")
    server = await asyncio.create_subprocess_exec(
        "git", *words, f"--base-path={repository.parent}", str(repository.parent),
        env={"PATH": os.environ["PATH"], "HOME": str(repository.parent), "GIT_CONFIG_COUNT": "1",
             "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
        start_new_session=True,
    )  # fmt: skip
    for _ in range(100):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            break
    yield f"git://127.0.0.1:{unused_tcp_port}/{repository.name}"
    server.terminate()
    await server.wait()


@pytest.mark.parametrize(("ref", "version"), [("", 2), ("v1", 1), ("main", 2)])
async def test_a_repository_is_cloned_before_the_command(jobs: Jobs, daemon: str, ref: str, version: int) -> None:
    uid = await jobs.want("sh", "train.sh", git=wire.Git(url=daemon, ref=ref))
    said = await jobs.output(uid)
    assert said.splitlines()[-1] == f"version {version}"
    assert (jobs.directory(uid) / "home/train.sh").stat().st_uid == ME


async def test_a_clone_that_fails_fails_the_run_and_gits_words_are_its_output(jobs: Jobs, daemon: str) -> None:
    uid = await jobs.want("touch", "begun", git=wire.Git(url=daemon, ref="nowhere"))
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (125, f"git could not clone {daemon} at nowhere: its output says why")
    assert "couldn't find remote ref nowhere" in await jobs.output(uid)
    assert not (jobs.directory(uid) / "home/begun").exists()


async def test_a_node_without_git_says_so(jobs: Jobs) -> None:
    uid = await jobs.want("true", git=wire.Git(url="file:///x"), environment={"PATH": "/nowhere"})
    ended = await jobs.reach(uid, "ended")
    assert ended.exit_code == 125
    assert str(ended.reason).startswith("there is no git on this node")


async def test_credentials_of_a_repository_come_from_the_jobs_variables(jobs: Jobs, repository: Path) -> None:
    async with served_with_password(repository, "max", 'it\'s "secret" $x') as url:
        uid = await jobs.want("sh", "train.sh", git=wire.Git(url=url))
        assert "could not clone" in str((await jobs.reach(uid, "ended")).reason)
        secret = {"GIT_USERNAME": "max", "GIT_PASSWORD": 'it\'s "secret" $x'}
        uid = await jobs.want("sh", "-c", "sh train.sh; cat .git/config", git=wire.Git(url=url), environment=secret)
        said = await jobs.output(uid)
    assert "version 2" in said
    assert "secret" not in said
