"""Orders to the helper process, and what comes of them.

Each call of the driver has a time, by the size of what moves; a helper that says nothing for longer is killed. Nothing
is lost by that: the next order asks the driver how far each process is.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from agent.host.processes import Process
from agent.logs import log

HELPER = Path(__file__).with_name("helper.py")
# `keep`: as `suspend`, and what is suspended stays so if others cannot be.
Action = Literal["probe", "suspend", "keep", "resume", "release"]
# `died`: the helper ended without a word; `hung`: a call did not return in its time.
# `halted`: of processes that are brought to other GPUs, some are there and locked, the others are suspended.
Result = Literal["able", "unable", "suspended", "running", "mixed", "halted", "died", "hung"]
# Slower than any measured (2.1 GiB/s out, H100 and H200), for a machine whose memory is busy.
LEAST_BYTES_PER_SECOND = 256 << 20
PROBE_SECONDS = 20.0
LEAST_CUDA = 12080
# A helper that blocks in the kernel ends when its call does; nobody waits for that.
KILLED_SECONDS = 1.0
# The driver lets the kernels that run end first.
MOST_LOCK_SECONDS = 10.0
# They would make the helper a program of a claim, or hide GPUs from it.
FOREIGN = ("LD_PRELOAD", "GPUCLOUD_CLAIM_DIR", "CUDA_VISIBLE_DEVICES")


Maps = Mapping[int, Sequence[tuple[str, str]]]


class Outcome(NamedTuple):
    """The result of an order, and in words why it is not what was wanted."""

    result: Result
    reason: str
    # By pid, of the processes that use a GPU, as the driver numbers states.
    states: dict[int, int]
    # Of the driver, as it numbers it; 0: not asked.
    cuda: int = 0


class Line(msgspec.Struct, frozen=True):
    """One line of the helper's."""

    step: str = ""
    pid: int = 0
    failed: str = ""
    result: Result | None = None
    reason: str = ""
    states: dict[int, int] = {}
    cuda: int = 0


class Calls:
    """The driver's calls by a helper. `library`: the simulated libcuda; None: the machine's own."""

    def __init__(self, library: Path | None, *, patience_seconds: float) -> None:
        self._library = str(library or "libcuda.so.1")
        self._patience_seconds = patience_seconds

    async def find_cuda(self) -> int:
        """Return the CUDA version of the machine's driver, as it numbers it; 0 if it does not have the calls."""
        outcome = await self._run("probe", (), PROBE_SECONDS)
        if outcome.result != "able":
            log.info("cannot-suspend", reason=outcome.reason)
            return 0
        # A driver that has the calls is 570 (12.8) or newer, whatever it says.
        return max(outcome.cuda, LEAST_CUDA)

    async def carry_out(
        self, action: Action, processes: Collection[Process], size_bytes: int, *, maps: Maps | None = None
    ) -> Outcome:
        """Carry the order out on all of the processes, whose GPU memory is of about this size. Raises nothing.

        `maps`: the GPUs to which a restore brings a process, by pid (`agent.suspend.moving`).
        """
        seconds = self._patience_seconds + size_bytes / LEAST_BYTES_PER_SECOND
        return await self._run(action, processes, seconds, maps or {})

    async def _run(
        self, action: Action, processes: Collection[Process], seconds: float, maps: Maps | None = None
    ) -> Outcome:
        order = {
            "action": action,
            "agent": os.getpid(),
            "library": self._library,
            "maps": {str(pid): pairs for pid, pairs in (maps or {}).items()},
            "lock_ms": round(min(self._patience_seconds, MOST_LOCK_SECONDS) * 1000 * 0.9),
            "processes": sorted(processes),
            "undo_seconds": self._patience_seconds,
        }
        try:
            helper = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(HELPER),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name not in FOREIGN},
            )  # fmt: skip
        except OSError as error:
            return Outcome("died", f"The helper could not be started: {error.strerror}.", {})
        try:
            return await self._follow(helper, msgspec.json.encode(order) + b"\n", seconds)
        finally:
            await _end(helper)

    async def _follow(self, helper: Any, order: bytes, seconds: float) -> Outcome:
        last = Line()
        with contextlib.suppress(ConnectionError):
            helper.stdin.write(order)
        while True:
            try:
                async with asyncio.timeout(seconds):
                    text = await helper.stdout.readline()
                line = msgspec.json.decode(text, type=Line) if text else Line(reason=f"The helper ended ({last.step}).")
            except TimeoutError:
                words = f"{last.step} of process {last.pid} has not returned within {seconds:.0f} s."
                return Outcome("hung", words, {})
            except (ValueError, msgspec.DecodeError):
                line = Line(reason="The helper's words cannot be read.")
            if line.result is not None:
                return Outcome(line.result, line.reason, line.states, line.cuda)
            if line.reason:
                return Outcome("died", line.reason, {})
            if line.failed:
                log.info("suspension-call-failed", reason=line.failed)
            last = line if line.step else last


async def _end(helper: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        helper.kill()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILLED_SECONDS):
            await helper.wait()
