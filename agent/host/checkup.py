"""Once a second: look at the GPUs' vital signs and at what is around, and keep the conditions.

A driver that hangs must not hold up the rest: its reading is waited for no longer than a few seconds, and while it is
out, the GPUs' conditions stay and the driver's says why.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from agent import wire
from agent.host import environment_checks, processes, xids
from agent.host.gpus import Inventory, Nvml
from agent.host.health import Health, Verdict
from agent.host.health_metrics import Vitals, VitalSigns
from agent.host.rate_limiter import Limiter
from agent.local_wire import ArbiterStatus
from agent.server.outbox import Outbox
from agent.settings import Settings

LOOK_SECONDS = 1.0
# A driver under load may take a second or two for what takes microseconds otherwise.
HANGS_SECONDS = 10.0
# A program that fails in a loop must not fill the log of the whole platform.
MOST_XID_REPORTS = 20


class Reading(NamedTuple):
    """What NVML said at one look."""

    vitals: list[Vitals]
    driver: str | None


class Around(NamedTuple):
    """What else there is to look at."""

    inventory: Inventory
    arbiter: ArbiterStatus
    claims_run: bool
    # What others than this module judge.
    more: Iterable[Verdict] = ()


class Checkup:
    """The node's conditions. `in_nvml_thread` runs a call there and awaits it."""

    def __init__(
        self,
        signs: VitalSigns,
        health: Health,
        *,
        directories: Iterable[Path],
        libraries: Iterable[Path],
        least_bytes: int,
        in_nvml_thread: Callable[[Callable[[], Reading]], Awaitable[Reading]],
    ) -> None:
        self._signs = signs
        self.health = health
        self.clock = environment_checks.Clock()
        self._driver = environment_checks.Driver()
        self._arbiter = environment_checks.ArbiterWatch()
        self._directories = tuple(directories)
        self._libraries = tuple(libraries)
        self._least_bytes = least_bytes
        self._in_nvml_thread = in_nvml_thread
        self._reading: asyncio.Future[Reading] | None = None
        self._limiter = Limiter(MOST_XID_REPORTS)

    async def run(self, around: Callable[[], Around], outbox: Outbox) -> None:
        """Look for as long as the agent lives."""
        while True:
            reading = await self.read()
            now, at = time.monotonic(), time.time()
            for event in self.xid_events(reading, now=now, at=at):
                outbox.put(event)
            if self.take(reading, around(), now=now, at=at):
                outbox.mark_conditions()
            await asyncio.sleep(LOOK_SECONDS)

    async def read(self) -> Reading | None:
        """NVML's answers; None where they are still to come."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._in_nvml_thread(self._look))
        await asyncio.wait([self._reading], timeout=HANGS_SECONDS)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    def take(self, reading: Reading | None, around: Around, *, now: float, at: float) -> bool:
        """Keep the conditions; True where one changed."""
        clock = self.clock.verdict()
        node = [
            self._driver.verdict(
                around.inventory,
                reading.driver if reading is not None else None,
                claims_run=around.claims_run,
                hangs=reading is None,
            ),
            self._arbiter.verdict(around.arbiter, now=now),
            environment_checks.disks(self._directories, least_bytes=self._least_bytes),
            environment_checks.library(self._libraries),
            *([clock] if clock is not None else []),
            *around.more,
        ]
        return self.health.look(reading.vitals if reading is not None else (), node, now=now, at=at)

    def xid_events(self, reading: Reading | None, *, now: float, at: float) -> list[wire.Event]:
        """What XID errors tell, each once, and not too many of them."""
        found = [(one.gpu_uuid, number) for one in (reading.vitals if reading else ()) for number in one.xids]
        return [
            wire.Event(at=at, code="xid", detail=f"XID {number} on {uuid}: {xids.words(number)}.")
            for uuid, number in found
            if self._limiter.admits(now)
        ]

    def _look(self) -> Reading:
        return Reading(self._signs.look(), self._signs.driver())


def made(
    settings: Settings,
    nvml: Nvml,
    run_dir: Path,
    in_nvml_thread: Callable[[Callable[[], Reading]], Awaitable[Reading]],
) -> Checkup:
    """As the settings want it."""
    health_file = settings.state_dir / "health.json"
    return Checkup(
        VitalSigns(nvml),
        Health(health_file, hold_seconds=settings.hold_seconds, boot=processes.boot_id()),
        directories=(settings.state_dir, run_dir),
        libraries=(settings.library.path, settings.pages_library),
        least_bytes=settings.least_free_bytes,
        in_nvml_thread=in_nvml_thread,
    )
