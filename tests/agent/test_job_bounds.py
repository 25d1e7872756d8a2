"""Bounds of a run on the machine's memory, processes and disk: hostile programs are ended and told."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent import wire
from agent.jobs import disk_use, resource_group
from agent.jobs.bounds import LEAST_MEMORY_BYTES, find_bounds, machine_bytes
from agent.jobs.run_directory import Order, RunDirectory
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.jobs import FIRST, IS_ROOT, OWNER, Jobs, only_root, settings
from tests.agent.stage import Stage, eventually

MIB = 1 << 20
MEMORY_MIB, DISK_MIB = 192, 24
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or ""


@pytest.fixture
async def jobs(run_dir: Path, control: Control) -> AsyncIterator[Jobs]:
    """Return the runs of an agent that gives each little memory and disk."""
    root = run_dir / "machine"
    root.mkdir()
    stage = Stage(root, run_dir, control, agents=forked.server())
    stage.node_file.chmod(0o666)
    small = {"GPUCLOUD_JOBS_MEMORY_MIB": str(MEMORY_MIB), "GPUCLOUD_JOBS_DISK_MIB": str(DISK_MIB)}
    stage.start(**(settings(stage) | small))
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    it = Jobs(stage, link)
    yield it
    await it.close()
    stage.close()


@only_root
async def test_a_program_that_takes_too_much_memory_is_ended_and_told(jobs: Jobs) -> None:
    if not resource_group.can_bound_memory():
        pytest.skip("control groups cannot bound memory here")
    hold = "kept = [bytes(b'x' * 2**20) for _ in range(%d)]; print('kept', len(kept))"
    modest = await jobs.want(PYTHON, "-c", hold % (MEMORY_MIB // 3))
    assert (await jobs.reach(modest, "ended")).exit_code == 0
    greedy = await jobs.want(PYTHON, "-c", hold % (MEMORY_MIB * 2))
    ended = await jobs.reach(greedy, "ended")
    assert (ended.exit_code, ended.reason) == (137, f"host memory: the kernel ended a process at {MEMORY_MIB} MiB")
    # Many small processes count together; the keeper lives on to tell it.
    part = f'{PYTHON} -c "{hold % 80}; import time; time.sleep(9)"'
    many = await jobs.want("sh", "-c", f"for i in 1 2 3 4; do {part} & done; wait; exit 1")
    assert "host memory" in str((await jobs.reach(many, "ended")).reason)
    jobs.runs.clear()
    await jobs.send()
    above = resource_group.find_own()["memory"]
    await eventually(lambda: not [uid for uid in (modest, greedy, many) if list(above.glob(f"**/run-{uid}"))])


async def test_a_program_that_fills_the_disk_is_ended_and_told(jobs: Jobs) -> None:
    fill = "i=0; while :; do head -c 1M /dev/zero >part-$i; i=$((i+1)); sleep 0.05; done"
    begun = time.monotonic()
    ended = await jobs.reach(await jobs.want("sh", "-c", fill), "ended")
    assert ended.reason == f"disk: more than {DISK_MIB} MiB"
    assert time.monotonic() - begun < 30


async def test_a_file_that_is_removed_and_grows_counts(jobs: Jobs) -> None:
    code = (
        "import os, time\n"
        "parts = [open(str(i), 'wb') for i in range(4)]\n"
        "for i in range(4): os.unlink(str(i))\n"
        f"for part in parts: part.write(bytes({DISK_MIB // 3} << 20)); part.flush()\n"
        "time.sleep(60)"
    )
    ended = await jobs.reach(await jobs.want(PYTHON, "-c", code), "ended")
    assert ended.reason == f"disk: more than {DISK_MIB} MiB"


async def test_one_large_file_is_refused_by_the_kernel(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "exec head -c 1G /dev/zero >large")
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (153, f"disk: a file of more than {DISK_MIB} MiB")
    assert (jobs.directory(uid) / "home/large").stat().st_size <= DISK_MIB * MIB


async def test_directories_deeper_than_a_path_are_not_a_hiding_place(jobs: Jobs) -> None:
    deeper = "os.mkdir('d' * 200); os.chdir('d' * 200)"
    code = f"import os, time\nfor _ in range(60): {deeper}\nopen('x', 'w'); time.sleep(60)"
    ended = await jobs.reach(await jobs.want(PYTHON, "-c", code), "ended")
    assert ended.reason == "disk: its directories are too deep to be measured"


def test_links_and_foreign_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "large").write_bytes(bytes(3 * MIB))
    (tmp_path / "own/link").symlink_to(tmp_path / "large")
    (tmp_path / "own/above").symlink_to(tmp_path)
    assert disk_use.measure([str(tmp_path / "own")], uid=None, programs=()) < MIB
    (tmp_path / "own/file").write_bytes(bytes(2 * MIB))
    assert disk_use.measure([str(tmp_path / "own")], uid=None, programs=()) >= 2 * MIB


def test_a_run_may_take_its_claims_part_of_the_machine() -> None:
    gpus = {f"GPU-{number:08}-0000-0000-0000-000000000000": 80 << 30 for number in range(4)}
    first = next(iter(gpus))

    def bounds(core: int, memory: int, *, memory_mib: int = 0) -> tuple[int, int]:
        one = wire.Assignment(
            uid="0" * 8 + "-0000-0000-0000-" + "0" * 12, claim_uid="1" * 8 + "-0000-0000-0000-" + "0" * 12, tenant="t",
            gpu_uuid=first, generation=1, core_request=core, core_limit=core, memory_bytes=memory,
            secret_digest="0" * 64,
        )  # fmt: skip
        found = find_bounds([one], gpus, memory_mib=memory_mib, disk_mib=1)
        return found.memory_bytes, found.cpu_weight

    assert bounds(100, 1 << 30) == (machine_bytes() // 4, 250)
    # By the larger part of compute and memory.
    assert bounds(10, 40 << 30) == (machine_bytes() // 8, 125)
    assert bounds(1, 1 << 20) == (max(LEAST_MEMORY_BYTES, machine_bytes() // 400), 2)
    assert bounds(100, 1 << 30, memory_mib=5) == (5 << 20, 250)


async def test_a_log_of_a_gigabyte_a_minute_is_bounded(jobs: Jobs) -> None:
    begun = time.monotonic()
    uid = await jobs.want("sh", "-c", "yes 'a line of a log' | head -c 256M; echo the end", output_bytes=1 << 20)
    ended = await jobs.reach(uid, "ended")
    assert ended.output_bytes <= 1 << 20
    assert ended.dropped_bytes > 250 * MIB
    assert (await jobs.output(uid)).endswith("the end\n")
    assert time.monotonic() - begun < 30


async def test_a_keeper_that_systemd_starts_is_kept_before_it_has_its_lock(tmp_path: Path) -> None:
    """The starter ends with 0 while the keeper is still on its way, like systemd-run."""
    starter = ["sh", "-c", '(sleep 0.5; exec "$@") & exit 0', "starter"]
    directory = RunDirectory(tmp_path / "run")
    uid = FIRST + OWNER if IS_ROOT else None
    order = Order(
        command=["true"], seconds=0, output_bytes=1 << 20, uid=uid, home=str(directory.home),
        tmp=str(directory.temporary), group="run-test", memory_bytes=1 << 30, disk_bytes=1 << 30, cpu_weight=100,
        processes=100, files=100, stop_seconds=1, linger_seconds=1, boot="now",
    )  # fmt: skip
    directory.begin(order, starter=starter)
    seen = False
    for _ in range(100):
        # From its start to the program that waits, there is no moment in which it looks lost.
        assert directory.is_kept()
        seen = seen or directory.program() is not None
        if seen:
            break
        await asyncio.sleep(0.02)
    assert seen
    directory.stop()
    await eventually(lambda: directory.result() is not None)
    # One that fails is no keeper.
    other = RunDirectory(tmp_path / "other")
    other.begin(order, starter=["false"])
    await eventually(lambda: not other.is_kept(), seconds=5)


def test_a_group_of_version_2_is_made_where_controllers_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "above/own"
    own.mkdir(parents=True)
    monkeypatch.setattr(resource_group, "find_own", lambda: {"memory": own})
    # Version 1 has no such file.
    assert resource_group.can_bound_memory()
    (own / "cgroup.subtree_control").write_text("")
    assert not resource_group.can_bound_memory()
    (tmp_path / "above/cgroup.subtree_control").write_text("pids\n")
    assert not resource_group.can_bound_memory()
    (tmp_path / "above/cgroup.subtree_control").write_text("memory pids\n")
    assert resource_group.can_bound_memory()
    # What a keeper left beside it is removed, with an empty group of a claim in it.
    (tmp_path / "above/run-x/gpucloud-claim").mkdir(parents=True)
    resource_group.remove("run-x")
    assert not (tmp_path / "above/run-x").exists()
