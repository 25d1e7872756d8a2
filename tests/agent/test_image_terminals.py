"""Terminals in containers of a real engine: bounded as the container is, ended with all that was started in them."""

import contextlib
import signal
from pathlib import Path

from agent.jobs import container_terminal
from tests.agent.jobs import ME, Jobs
from tests.agent.stage import eventually
from tests.agent.test_job_images import image, jobs, real
from tests.agent.test_terminals import open_terminal

__all__ = ["image", "jobs"]


def _with_mark() -> set[int]:
    """Return the processes of the machine that were started in a container's terminal."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if f"{container_terminal.MARK}=".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def _parts_of_engine(jobs: Jobs, uid: str) -> list[str]:
    """Return what the engine runs for terminals in the run's container."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if uid in line and ("exec --env" in line or "--exec-attach" in line):
                found.append(line)
    return found


async def running(jobs: Jobs, image: str) -> str:
    uid = await jobs.want("sh", "-c", "while :; do sleep 1; done", image=image, environment={"MINE": "my own"})
    await jobs.reach(uid, "running")
    return uid


@real
async def test_a_shell_in_the_container_has_its_user_variables_and_bounds(jobs: Jobs, image: str) -> None:
    uid = await running(jobs, image)
    client = await open_terminal(jobs, uid)
    await client.type("id; pwd; echo $FROM/$MINE/$TERM/$GPUCLOUD_CLAIM; tty=$(ls -l /proc/self/fd/0); echo $tty\n")
    await client.type(
        "cat /proc/self/status /proc/self/limits; cat /proc/self/cgroup; touch /open/a; echo $((1 + 1))end\n"
    )
    await client.see("2end\r\n")
    shown = client.shown.decode()
    home = jobs.directory(uid) / "home"
    # The image says that it is root's, and its accounts give root's group.
    assert f"groups={ME}" in shown
    assert f"\n{home}\r\n" in shown
    assert f"\nimage/my own/xterm-256color/{jobs.claim.claim_uid}\r\n" in shown
    assert "/dev/pts/" in shown
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in shown
    assert "Max open files            4096" in shown
    assert "libpod" in shown
    assert "Read-only file system" in shown
    await client.type("exit 7\n")
    assert await client.end() == {"exit": 7}
    await eventually(lambda: not _parts_of_engine(jobs, uid))


@real
async def test_sizes_keys_and_commands_reach_the_program(jobs: Jobs, image: str) -> None:
    uid = await running(jobs, image)
    script = "trap 'stty size' WINCH; trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    client = await open_terminal(jobs, uid, "sh", "-c", script)
    await client.see("ready")
    await client.socket.send('{"columns": 120, "rows": 40}')
    await client.see("40 120")
    await client.type("\x03")
    await client.see("caught")
    assert await client.end() == {"exit": 9}
    missing = await open_terminal(jobs, uid, "no-such-program")
    assert await missing.end() == {"exit": 127}
    # What looks like an option is the program's.
    strange = await open_terminal(jobs, uid, "--privileged", "id")
    assert await strange.end() in ({"exit": 126}, {"exit": 127})


@real
async def test_what_was_started_in_it_ends_with_it_and_the_run_goes_on(jobs: Jobs, image: str) -> None:
    uid = await running(jobs, image)
    # A daemon that has left its session and its parents, and takes no hangup.
    script = "trap '' HUP TERM; (setsid sh -c 'trap \"\" HUP TERM; echo begun; while :; do sleep 1; done' &); sleep 100"
    client = await open_terminal(jobs, uid, "sh", "-c", script)
    await client.see("begun")
    assert len(_with_mark()) >= 2
    await client.socket.close()
    await eventually(lambda: not _with_mark())
    await eventually(lambda: not _parts_of_engine(jobs, uid))
    again = await open_terminal(jobs, uid, "sh", "-c", "echo still here")
    await again.see("still here")
    await jobs.change(uid, stop=True)
    assert (await jobs.reach(uid, "ended")).reason == "stopped"


@real
async def test_it_ends_with_the_run_and_after_the_agent(jobs: Jobs, image: str) -> None:
    uid = await running(jobs, image)
    client = await open_terminal(jobs, uid, "sh", "-c", "trap '' TERM HUP; echo begun; while :; do sleep 1; done")
    await client.see("begun")
    await jobs.change(uid, stop=True)
    assert await client.end() == {"ended": "The run has ended."}
    await jobs.reach(uid, "ended")
    assert not _with_mark()
    # A program that ends by SIGKILL alone has an exit code.
    other = await running(jobs, image)
    killed = await open_terminal(jobs, other, "sh", "-c", "echo begun; kill -9 $$")
    assert await killed.end() == {"exit": 128 + signal.SIGKILL}
    # An agent that is killed hangs up.
    last = await open_terminal(jobs, other, "sh", "-c", "echo begun; sleep 1000")
    await last.see("begun")
    assert _with_mark()
    await jobs.stage.kill()
    await eventually(lambda: not _with_mark())
    await eventually(lambda: not _parts_of_engine(jobs, other))
