"""Programs of jobs that an agent starts under claims: real processes, as another user where the tests are root."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import UNSET, structs

from agent import wire
from agent.host import processes
from agent.jobs import files
from agent.local_api import status as local_status
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.jobs import ME, Jobs, settings
from tests.agent.stage import GPULOAD, Stage, eventually

UNKNOWN = "00000000-0000-0000-0000-0000000000ff"


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
    assert hello.jobs is True
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    it = Jobs(stage, link)
    yield it
    await it.close()


async def test_a_program_runs_under_its_claim_as_its_user_and_its_exit_code_is_known(jobs: Jobs) -> None:
    uid = await jobs.want(
        "sh", "-c", "id -u; id -G; pwd; umask; echo $HOME; echo $GPUCLOUD_CLAIM_DIR; echo $MINE; exit 3",
        environment={"MINE": "my own", "HOME": "/root", "GPUCLOUD_CLAIM_SECRET": "x"},
    )  # fmt: skip
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason, ended.dropped_bytes) == (3, None, 0)
    assert ended.started_at is not None
    assert ended.ended_at is not None
    assert time.time() - 60 < ended.started_at <= ended.ended_at
    home = str(jobs.directory(uid) / "home")
    group = str(ME) if os.getuid() != ME else " ".join(map(str, sorted({os.getgid(), *os.getgroups()})))
    said = (await jobs.output(uid)).splitlines()
    assert said == [str(ME), group, home, "0077", home, str(jobs.stage.claim_dir(jobs.claim)), "my own"]


async def test_its_gpu_programs_are_limited(jobs: Jobs) -> None:
    uid = await jobs.want(str(GPULOAD), "--memory", "1GiB")
    await jobs.reach(uid, "running")
    usage = await jobs.link.expect(wire.Usage, lambda frame: any(one.processes for one in frame.assignments))
    assert usage.assignments[0].memory_limit_bytes == jobs.claim.memory_bytes
    await jobs.change(uid, stop=True)
    assert (await jobs.reach(uid, "ended")).reason == "stopped"


async def test_the_agents_status_lists_runs(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "echo 'one  two'; sleep 1000", image="")
    await jobs.reach(uid, "running")
    ended = await jobs.want("sh", "-c", "exit 3")
    await jobs.reach(ended, "ended")
    refused = await jobs.want("true", claim_uid=UNKNOWN)
    await jobs.reach(refused, "waiting")
    runs = {row["uid"]: row for row in (await asyncio.to_thread(jobs.stage.status))["runs"]}
    assert runs.keys() == {uid, ended, refused}
    assert (runs[uid]["state"], runs[uid]["command"]) == ("running", """sh -c 'echo '"'"'one  two'"'"'; sleep 1000'""")
    assert runs[uid]["claim"] == jobs.claim.claim_uid
    assert (runs[ended]["state"], runs[ended]["exit_code"]) == ("ended", 3)
    assert runs[ended]["started_at"] <= runs[ended]["ended_at"]
    assert "not on this node" in runs[refused]["reason"]
    status = await asyncio.to_thread(local_status.ask, jobs.stage.run_dir)
    table = local_status.as_table(status)
    assert re.search(rf"^{ended}  {jobs.claim.claim_uid}  ended +3 +0 s +0 +-  ", table, re.MULTILINE), table
    assert f"{refused}: Claim {UNKNOWN} is not on this node." in table
    assert "RUN " not in local_status.as_table(structs.replace(status, runs=[]))


async def test_a_run_waits_for_its_claim(jobs: Jobs) -> None:
    later = jobs.claim
    jobs.claim = jobs.stage.assignment(1)
    uid = await jobs.want("echo", "here", claim_uid=later.claim_uid)
    waiting = await jobs.reach(uid, "waiting")
    assert waiting.reason == f"Claim {later.claim_uid} is not on this node."
    await jobs.send(assignments=[jobs.claim, later])
    assert await jobs.output(uid) == "here\n"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [("/nowhere/program", 127, "command not found"), ("/etc", 126, "Permission denied")],
)
async def test_a_command_that_is_no_program(jobs: Jobs, command: str, code: int, words: str) -> None:
    uid = await jobs.want(command)
    assert (await jobs.reach(uid, "ended")).exit_code == code
    assert await jobs.output(uid) == f"gpucloud: {command}: {words}\n"


async def test_a_program_that_ignores_sigterm_is_killed(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    await eventually(lambda: jobs.stored.get(uid) == b"ready\n")
    await jobs.change(uid, stop=True, started=True)
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (137, "stopped")


async def test_a_program_may_clean_up_when_its_time_is_over(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "trap 'echo saved; exit 5' TERM; while :; do sleep 5; done", seconds=1)
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (5, "time limit of 1 s")
    # Its children were asked, too: the shell says so.
    assert await jobs.output(uid) == "Terminated\nsaved\n"


async def test_a_flood_of_output_is_bounded_and_its_end_is_kept(jobs: Jobs) -> None:
    flood = "head -c 3000000 /dev/zero | tr '\\0' x; printf 'the end' >&2"
    uid = await jobs.want("sh", "-c", flood, output_bytes=200_000)
    ended = await jobs.reach(uid, "ended")
    assert ended.exit_code == 0
    assert 199_000 < ended.output_bytes <= 200_000
    text = await jobs.output(uid)
    line = f"\n[gpucloud: {ended.dropped_bytes} bytes of output were left out here]\n"
    first, found, last = text.partition(line)
    assert found
    assert len(first) + len(last) + ended.dropped_bytes == 3_000_007
    assert last.endswith("the end")


async def test_a_daemon_that_holds_the_output_is_ended_with_the_program(jobs: Jobs) -> None:
    daemon = "setsid sh -c 'trap \"\" TERM; echo $$ >daemon; while :; do sleep 0.1; done' & sleep 0.3; exit 0"
    uid = await jobs.want("sh", "-c", daemon)
    started = time.monotonic()
    ended = await jobs.reach(uid, "ended")
    assert ended.exit_code == 0
    # The agent of the tests gives one second.
    assert time.monotonic() - started < 6
    pid = int((jobs.directory(uid) / "home/daemon").read_text())
    assert processes.find(pid) is None


async def test_a_fork_bomb_is_bounded_and_ended(jobs: Jobs) -> None:
    # The kernel's bound, made smaller for a bomb that is cheap.
    code = "trap '' TERM; ulimit -u; ulimit -u $(( $(ulimit -u) - 1024 + 40 )); bomb() { bomb | bomb & }; bomb"
    uid = await jobs.want("bash", "-c", f"{code}; sleep 60")
    await eventually(lambda: b"Resource temporarily unavailable" in jobs.stored.get(uid, b""))
    assert int(jobs.stored[uid].split()[0]) >= 1024
    await jobs.change(uid, stop=True)
    assert (await jobs.reach(uid, "ended")).reason == "stopped"
    assert find_programs(f"HOME={jobs.directory(uid)}") == []


def find_programs(variable: str) -> list[Path]:
    """Return the processes that have this in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(variable) in (entry / "environ").read_bytes():
                found.append(entry)
    return found


async def test_a_program_cannot_read_the_files_of_its_run_or_of_others(jobs: Jobs) -> None:
    if os.getuid() == ME:
        pytest.skip("it has the agent's own user")
    other = await jobs.want("sh", "-c", "echo private >secret; sleep 30", owner=4)
    await eventually((jobs.directory(other) / "home/secret").exists)
    reads = f"ls ..; ls ../..; cat ../order.json ../output {jobs.directory(other)}/home/secret; touch ../stop"
    uid = await jobs.want("sh", "-c", reads)
    # The claim belongs to one user at a time.
    assert "one user at a time" in str((await jobs.reach(uid, "waiting")).reason)
    await jobs.change(other, stop=True)
    said = (await jobs.output(uid)).splitlines()
    assert len(said) == 6
    assert all("Permission denied" in line for line in said), said


async def test_an_agent_that_is_killed_leaves_the_program_and_the_next_adopts_it(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 4")
    await eventually(lambda: jobs.stored.get(uid) == b"one\n")
    await jobs.stage.kill()
    await jobs.start_again()
    # The server does not remember how much it has: everything is sent again.
    await jobs.change(uid, started=True)
    (jobs.directory(uid) / "home/go").touch()
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (4, None)
    assert await jobs.output(uid) == "one\ntwo\n"


async def test_a_program_that_ends_while_there_is_no_agent(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; exit 6")
    await jobs.reach(uid, "running")
    await jobs.stage.kill()
    (jobs.directory(uid) / "home/go").touch()
    await eventually((jobs.directory(uid) / files.RESULT).exists)
    await jobs.start_again()
    await jobs.change(uid, started=True, stored=4)
    assert (await jobs.reach(uid, "ended")).exit_code == 6


async def test_a_keeper_that_is_killed_loses_the_run_and_its_program_ends(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "echo $$; exec sleep 60")
    await eventually(lambda: jobs.stored.get(uid))
    (keeper,) = jobs.keepers()
    os.kill(keeper, signal.SIGKILL)
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (None, "lost: the process that kept it was killed")
    await eventually(lambda: processes.find(int(jobs.stored[uid])) is None)


async def test_a_reboot_loses_the_run_and_it_is_not_started_again(jobs: Jobs) -> None:
    uid = await jobs.want("sh", "-c", "echo begun >>count; sleep 60")
    await jobs.reach(uid, "running")
    await eventually((jobs.directory(uid) / "home/count").exists)
    await jobs.stage.kill()
    (keeper,) = jobs.keepers()
    os.kill(keeper, signal.SIGKILL)
    order = jobs.directory(uid) / files.ORDER
    order.write_text(order.read_text().replace(processes.boot_id(), "another"))
    await jobs.start_again()
    await jobs.change(uid, started=True)
    assert (await jobs.reach(uid, "ended")).reason == "lost: the machine was started again"
    assert (jobs.directory(uid) / "home/count").read_text() == "begun\n"


async def test_a_run_of_which_nothing_is_left_is_not_started_again(jobs: Jobs) -> None:
    uid = await jobs.want("sleep", "60")
    await jobs.reach(uid, "running")
    await jobs.stage.kill()
    shutil.rmtree(jobs.directory(uid))
    await jobs.start_again()
    await jobs.change(uid, started=True)
    ended = await jobs.reach(uid, "ended")
    assert ended.exit_code is None
    assert str(ended.reason).startswith("lost: this node has no record")
    assert not jobs.directory(uid).exists()


async def test_a_run_that_was_begun_and_never_admitted_is_begun_again(jobs: Jobs) -> None:
    uid = await jobs.want("echo", "once", claim_uid=UNKNOWN)
    await jobs.reach(uid, "waiting")
    await jobs.stage.kill()
    # As an agent leaves it that is killed before its keeper starts.
    jobs.directory(uid).mkdir(parents=True)
    (jobs.directory(uid) / files.ORDER).write_text("{}")
    await jobs.start_again()
    await jobs.change(uid, claim_uid=jobs.claim.claim_uid)
    assert await jobs.output(uid) == "once\n"


async def test_a_run_that_is_no_longer_listed_is_ended_and_removed(jobs: Jobs, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("here")
    shell = (
        f"ln -s {precious} link; ln -s {precious}/file file; mkdir -p a/b/c; ln -s ../../.. a/b/up; "
        "i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done; chmod 0 .; touch $HOME/done; sleep 60"
    )
    uid = await jobs.want("sh", "-c", shell)
    await eventually((jobs.directory(uid) / "home/done").exists)
    program = processes.find(int((jobs.directory(uid) / files.PROGRAM).read_text().strip("[]\n").split(",")[0]))
    assert program is not None
    del jobs.runs[uid]
    await jobs.send()
    await eventually(lambda: not jobs.directory(uid).exists())
    assert not processes.alive(program)
    assert (precious / "file").read_text() == "here"


async def test_the_release_of_its_claim_ends_a_run(jobs: Jobs) -> None:
    uid = await jobs.want("sleep", "60")
    await jobs.reach(uid, "running")
    jobs.claim = jobs.stage.assignment(1)
    await jobs.send()
    assert (await jobs.reach(uid, "ended")).exit_code == 128 + signal.SIGTERM


async def test_a_run_that_is_stopped_before_it_begins_never_begins(jobs: Jobs) -> None:
    uid = await jobs.want("touch", "x", stop=True)
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason, ended.started_at) == (None, "stopped", None)
    assert not jobs.directory(uid).exists()


async def test_a_tenant_past_the_range_is_refused_in_words(jobs: Jobs) -> None:
    if os.getuid() == ME:
        pytest.skip("there is no range")
    uid = await jobs.want("true", owner=10)
    assert "tenant number 10" in str((await jobs.reach(uid, "refused")).reason)


async def test_an_agent_that_starts_none_refuses_in_words(stage: Stage) -> None:
    stage.start()
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    assert hello.jobs is UNSET
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    jobs = Jobs(stage, link)
    uid = await jobs.want("true")
    assert "GPUCLOUD_JOBS" in str((await jobs.reach(uid, "refused")).reason)
    await jobs.close()


@pytest.mark.long
@pytest.mark.parametrize("turn", range(20))
async def test_however_early_its_agent_is_killed_a_program_executes_once(jobs: Jobs, turn: int) -> None:
    uid = await jobs.want("sh", "-c", "echo executed >>count; sleep 0.3; exit 9")
    await asyncio.sleep(turn * 0.02)
    await jobs.stage.kill()
    await jobs.start_again()
    # As a server that has heard of no start.
    await jobs.send()
    ended = await jobs.reach(uid, "ended")
    assert (ended.exit_code, ended.reason) == (9, None)
    assert (jobs.directory(uid) / "home/count").read_text() == "executed\n"
