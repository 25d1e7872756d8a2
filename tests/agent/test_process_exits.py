"""The end of a process is reported at once, and once."""

import asyncio
import os
import subprocess
from pathlib import Path

from agent.host import processes
from agent.host.exits import NEAREST_SECONDS, ExitWatcher
from agent.host.processes import Process
from tests.agent.stage import eventually


def child() -> tuple["subprocess.Popen[bytes]", Process]:
    program = subprocess.Popen(["sleep", "600"])
    process = processes.find(program.pid)
    assert process is not None
    return program, process


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_each_end_wakes_and_many_at_once_wake_once() -> None:
    woken: list[None] = []
    watcher = ExitWatcher(lambda: woken.append(None))
    before = descriptors()
    pairs = [child() for _ in range(3)]
    watcher.watch({process for _, process in pairs})
    await asyncio.sleep(2 * NEAREST_SECONDS)
    assert woken == []
    for program, _ in pairs[:2]:
        program.kill()
    await eventually(lambda: woken)
    # They are not reaped yet: zombies are no longer watched, though they are named.
    watcher.watch({process for _, process in pairs})
    await asyncio.sleep(2 * NEAREST_SECONDS)
    assert len(woken) == 1
    pairs[2][0].kill()
    await eventually(lambda: len(woken) == 2)
    for program, _ in pairs:
        program.wait()
    watcher.close()
    assert descriptors() == before


async def test_who_is_no_longer_watched_or_has_a_pid_of_before_wakes_nobody() -> None:
    woken: list[None] = []
    watcher = ExitWatcher(lambda: woken.append(None))
    program, process = child()
    watcher.watch({process, Process(os.getpid(), 1)})
    watcher.watch(set())
    program.kill()
    program.wait()
    await asyncio.sleep(2 * NEAREST_SECONDS)
    assert woken == []
    watcher.close()
