"""The parts of jobs on a node, one by one: kept output, its sender, removal, users, the check."""

import fcntl
import os
import stat
import subprocess
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent import job_users, settings, wire
from agent.check import jobs as check
from agent.job_users import JobUsers
from agent.jobs.files import LOCK, OUTPUT
from agent.jobs.kept_output import LINE_BYTES, KeptOutput
from agent.jobs.removal import remove_tree
from agent.jobs.run_directory import RunDirectory
from agent.jobs.sender import ANSWER_SECONDS, BYTES_PER_SECOND, OutputSender
from tests.agent.jobs import only_root

MOST = 1024


@given(st.lists(st.binary(max_size=700), max_size=12))
def test_kept_output_is_bounded_and_nothing_is_left_out_silently(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes]
) -> None:
    home, before = tmp_path_factory.mktemp("kept"), Path.cwd()
    os.chdir(home)
    try:
        kept = KeptOutput(MOST)
        for data in written:
            kept.put(data)
        kept.close()
        found, whole = (home / OUTPUT).read_bytes(), b"".join(written)
    finally:
        os.chdir(before)
    assert len(found) <= MOST
    if not kept.dropped:
        assert found == whole
        return
    line = f"\n[gpucloud: {kept.dropped} bytes of output were left out here]\n".encode()
    assert len(line) <= LINE_BYTES
    first, _, last = found.partition(line)
    assert len(first) + kept.dropped + len(last) == len(whole)
    assert whole.startswith(first)
    assert whole.endswith(last)


def test_output_is_sent_in_turn_and_each_piece_waits_for_the_answer(tmp_path: Path) -> None:
    clock = [0.0]
    sender = OutputSender(lambda: clock[0])
    one, two = new_run(tmp_path, b"a" * 100_000), new_run(tmp_path, b"b" * 10)
    sender.know_runs(dict((one, two)))
    first = sender.next()
    assert first is not None
    assert (first.uid, first.offset, len(first.data)) == (one[0], 0, wire.MAX_CHUNK_BYTES)
    # The rate is for all together.
    assert sender.next() is None
    clock[0] += wire.MAX_CHUNK_BYTES / BYTES_PER_SECOND
    assert sender.next() == wire.Output(uid=two[0], offset=0, data=b"b" * 10)
    clock[0] += 1
    assert not sender.has_piece()
    assert sender.next() is None
    sender.take_answer(two[0], 10)
    sender.take_answer(one[0], wire.MAX_CHUNK_BYTES)
    second = sender.next()
    assert second is not None
    assert (second.offset, len(second.data)) == (wire.MAX_CHUNK_BYTES, 100_000 - wire.MAX_CHUNK_BYTES)
    clock[0] += ANSWER_SECONDS
    # No answer came: it is sent again.
    assert sender.next() == second


def test_on_a_new_connection_output_begins_where_the_server_says(tmp_path: Path) -> None:
    clock = [0.0]
    sender = OutputSender(lambda: clock[0])
    uid, (run, directory) = new_run(tmp_path, b"0123456789")
    sender.know_runs({uid: (run, directory)})
    assert sender.next() is not None
    sender.restart()
    clock[0] += 1
    sender.know_runs({uid: (structs.replace(run, stored=7), directory)})
    assert sender.next() == wire.Output(uid=uid, offset=7, data=b"789")


def new_run(root: Path, output: bytes) -> tuple[str, tuple[wire.JobRun, RunDirectory]]:
    uid = str(uuid.uuid4())
    (root / uid).mkdir()
    (root / uid / OUTPUT).write_bytes(output)
    return uid, (wire.JobRun(uid=uid, claim_uid=uid, command=["true"]), RunDirectory(root / uid))


def test_a_run_is_kept_if_another_keeper_than_the_last_started_one_has_its_lock(tmp_path: Path) -> None:
    """An agent that is killed between the start of its keeper and the keeper's lock leaves such a one."""
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    assert not run.is_kept()
    with (run.root / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run._keeper = subprocess.Popen(["true"])
        run._keeper.wait()
        assert run.is_kept()
    assert not run.is_kept()


def test_a_tree_deeper_than_any_path_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside, tree, before = tmp_path / "outside", tmp_path / "tree", Path.cwd()
    outside.mkdir()
    (outside / "file").write_text("precious")
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    try:
        os.chdir(tree)
        for _ in range(400):
            Path("directory-of-a-hostile-tenant").mkdir()
            os.chdir("directory-of-a-hostile-tenant")
        Path("link").symlink_to(outside)
    finally:
        os.chdir(before)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "file").read_text() == "precious"
    remove_tree(tree)


def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="tree"):
        remove_tree(tmp_path / "tree")
    assert (tmp_path / "outside").is_dir()


@pytest.mark.parametrize("text", ["0-100", "100", "200-100", "a-b", "-5", "on", "1000-4294967295", "1-2-3"])
def test_users_that_could_be_root_or_nobody_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GPUCLOUD_JOBS"):
        job_users.parse(text)


@only_root
def test_root_runs_no_program_as_itself() -> None:
    with pytest.raises(ValueError, match="not for root"):
        job_users.parse("self")
    users = job_users.parse("61000-61002")
    assert users is not None
    assert [users.find(owner) for owner in range(3)] == [61000, 61001, 61002]
    with pytest.raises(LookupError, match="61000-61002"):
        users.find(3)


def chosen(**more: object) -> settings.Settings:
    read = settings.read(server="http://x", state_dir="/var/lib/x", environment={})
    return read._replace(**more)  # type: ignore[arg-type]


def test_the_directory_of_runs_is_beside_the_state_directory_which_is_closed() -> None:
    assert chosen().jobs_dir == Path("/var/lib/x-jobs")
    assert check.jobs(chosen()).state == "ok"


@only_root
def test_the_check_finds_a_directory_that_users_cannot_reach_and_users_of_the_machine(tmp_path: Path) -> None:
    open_place = Path("/var/lib/x-jobs")
    assert check.jobs(chosen(jobs=JobUsers(61200, 61209), jobs_dir=open_place)).state == "ok"
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    found = check.jobs(chosen(jobs=JobUsers(61200, 61209), jobs_dir=closed / "jobs"))
    assert found.state == "failed"
    assert "closed to other users" in found.detail
    taken = check.jobs(chosen(jobs=JobUsers(1, 70000), jobs_dir=open_place))
    assert taken.state == "warning"
    assert "daemon" in taken.detail
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
