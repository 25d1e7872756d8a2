"""The end of a claim's programs for a move to another node: they save their state first, if they can.

SIGUSR1 is the notice that batch systems give (`sbatch --signal`), and trainers save a checkpoint at it. A program that
does not handle it would die of it, so only those that do get it.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from agent.claims import attribution
from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.processes import Process
from agent.logs import log

LOOK_SECONDS = 0.1
# Children of a process that has ended are found by a walk through all processes only.
WALK_SECONDS = 1.0


# Gives the processes of the machine to the claims to which they belong.
Attribute = Callable[[ClaimRuntime, list[attribution.ProcessInfo]], None]


async def end_programs(
    runtime: ClaimRuntime, attribute: Attribute, *, save_seconds: float, grace_seconds: float
) -> list[int]:
    """Let all programs of the claim end; return the pids of those that SIGKILL ended. Does not return before."""
    await _walk(runtime, attribute)
    runtime.members.thaw()
    noticed = [one.pid for one in runtime.members.living() if handles_notice(one) and _notify(one)]
    log.info("programs-noticed", claim=runtime.claim_uid, processes=noticed)
    begun = time.monotonic()
    killed: set[int] = set()
    # Without anybody to save something, there is nothing to wait for.
    asked_at = begun + (save_seconds if noticed else 0.0)
    walked_at = begun
    while True:
        now = time.monotonic()
        if now - walked_at >= WALK_SECONDS or not runtime.members.any_left:
            is_last = not runtime.members.any_left
            await _walk(runtime, attribute)
            walked_at = now
            if is_last and not runtime.members.any_left:
                return sorted(killed)
        if now >= asked_at + grace_seconds:
            killed |= {one.pid for one in runtime.members.kill()}
        elif now >= asked_at:
            runtime.members.ask_to_end()
        await asyncio.sleep(LOOK_SECONDS)


async def _walk(runtime: ClaimRuntime, attribute: Attribute) -> None:
    seen = await asyncio.to_thread(attribution.read_processes)
    runtime.refresh()
    attribute(runtime, seen)


def _notify(process: Process) -> bool:
    return processes.send(process, signal.SIGUSR1)


def handles_notice(process: Process) -> bool:
    """Return whether the process has a handler for SIGUSR1."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(errors="replace")
    except OSError:
        return False
    line = next((line for line in status.split("\n") if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
