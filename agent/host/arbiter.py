"""The node's arbiter process, which gives the claims of a GPU their turns: started, watched, restarted, ended.

It lives and dies with the agent. Its death has no lasting effect: libvcuda takes an arbiter that has been silent for
0.2 s for dead, and each claim follows its own limit until the next one has read the pages. So a restarted agent need
not adopt a running arbiter; the arbiter's own lock keeps two from giving turns at the same time.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.backoff import Backoff
from agent.local_wire import ArbiterStatus
from agent.logs import log
from agent.rundir import RunDir

_PARENT_DEATH = Path(__file__).with_name("parent_death.py")
# An arbiter that is built or installed later is found without a restart of the agent.
LOOK_AGAIN_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 5.0
# An arbiter that ran for this long worked: its death is reported, and the next is started soon.
SETTLED_SECONDS = 10.0
STOP_SECONDS = 2.0
# Another arbiter has the lock: an earlier agent's that has not ended yet.
EXIT_TAKEN = 3


class Arbiter:
    """The arbiter of one run directory. `report` receives the text about a death that is news."""

    def __init__(self, program: Path, run_dir: RunDir, *, report: Callable[[str], None]) -> None:
        self._program = program
        self._claims = run_dir.claims
        self._lock = run_dir.root / "arbiter.lock"
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._restarts = 0
        self._problem: str | None = None

    @property
    def installed(self) -> bool:
        """True if there is an arbiter to start."""
        return self._program.is_file()

    @property
    def status(self) -> ArbiterStatus:
        """The state of the process: running or not, and the reason if not."""
        pid = self._process.pid if self._process is not None else None
        return ArbiterStatus(running=pid is not None, pid=pid, restarts=self._restarts, problem=self._problem)

    async def run(self) -> None:
        """Keep it running until cancelled; then end it."""
        backoff = Backoff(LONGEST_PAUSE_SECONDS)
        while True:
            if not self.installed:
                await self._wait_for_it()
            begun = time.monotonic()
            code, self._problem = await self._run_once()
            settled = time.monotonic() - begun >= SETTLED_SECONDS
            if settled:
                backoff.reset()
            if code != EXIT_TAKEN and (settled or self._restarts == 0):
                self._report(f"{self._problem}; until the next one runs, each claim follows its own limit alone.")
            # Without an arbiter the claims of a GPU have no guarantees: one that had long run is replaced at once.
            pause = 0.0 if settled else backoff.next()
            log.warning("arbiter-ended", reason=self._problem, retry_seconds=round(pause, 2))
            await asyncio.sleep(pause)
            self._restarts += 1

    async def _wait_for_it(self) -> None:
        self._problem = f"{self._program} is not there: the claims of a GPU get no turns. Build it: make -C libvcuda."
        log.warning("no-arbiter", reason=self._problem)
        while not self.installed:  # noqa: ASYNC110 - no event for a new file
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _run_once(self) -> tuple[int | None, str]:
        """Start it and wait for its end; return its exit code (None: never started), and how it ended, in words."""
        arguments = [str(os.getpid()), str(self._program), str(self._claims), "--lock-file", str(self._lock)]
        try:
            # From the event loop's own thread, which lives as long as the agent: the arbiter ends with it.
            self._process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-I", "-S", str(_PARENT_DEATH), *arguments],
                env={},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            return None, f"The arbiter cannot be started: {error}"
        self._problem = None
        log.info("arbiter-started", pid=self._process.pid)
        try:
            code = await self._process.wait()
        finally:
            await _end(self._process)
            self._process = None
        if code == EXIT_TAKEN:
            return code, f"Another arbiter holds {self._lock}; waiting for it"
        return code, f"The arbiter ended with code {code}" if code >= 0 else f"The arbiter was ended by signal {-code}"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
