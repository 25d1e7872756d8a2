"""The checkup once a second: read the GPUs' health metrics and the environment checks, and update the conditions.

A driver that hangs must not hold up the rest: its reading is awaited for a few seconds at most, and while it is
outstanding, the GPUs' conditions stay and the driver's gives the reason.
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
from agent.host.health_metrics import HealthMetrics, HealthReader
from agent.host.rate_limiter import RateLimiter
from agent.local_wire import ArbiterStatus
from agent.server.outbox import Outbox
from agent.settings import Settings

LOOK_SECONDS = 1.0
# A driver under load may take a second or two for calls that otherwise take microseconds.
HANGS_SECONDS = 10.0
# A program that fails in a loop must not fill the log of the whole platform.
MOST_XID_REPORTS = 20


class Reading(NamedTuple):
    """NVML's answers at one checkup."""

    metrics: list[HealthMetrics]
    driver: str | None


class CheckupInputs(NamedTuple):
    """The other inputs of one checkup."""

    inventory: Inventory
    arbiter: ArbiterStatus
    claims_run: bool
    # Verdicts that other modules make.
    more: Iterable[Verdict] = ()


class Checkup:
    """The node's conditions. `in_nvml_thread` runs a call in the NVML thread and awaits it."""

    def __init__(
        self,
        reader: HealthReader,
        health: Health,
        *,
        directories: Iterable[Path],
        libraries: Iterable[Path],
        least_bytes: int,
        in_nvml_thread: Callable[[Callable[[], Reading]], Awaitable[Reading]],
    ) -> None:
        self._reader = reader
        self.health = health
        self.clock = environment_checks.Clock()
        self._driver = environment_checks.Driver()
        self._arbiter = environment_checks.ArbiterWatch()
        self._directories = tuple(directories)
        self._libraries = tuple(libraries)
        self._least_bytes = least_bytes
        self._in_nvml_thread = in_nvml_thread
        self._reading: asyncio.Future[Reading] | None = None
        self._limiter = RateLimiter(MOST_XID_REPORTS)

    async def run(self, inputs: Callable[[], CheckupInputs], outbox: Outbox) -> None:
        """Run the checkup every second until cancelled."""
        while True:
            reading = await self.read()
            now, at = time.monotonic(), time.time()
            for event in self.xid_events(reading, now=now, at=at):
                outbox.put(event)
            if self.take(reading, inputs(), now=now, at=at):
                outbox.mark_conditions()
            await asyncio.sleep(LOOK_SECONDS)

    async def read(self) -> Reading | None:
        """Return NVML's answers; None if they are still outstanding."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._in_nvml_thread(self._read_metrics))
        await asyncio.wait([self._reading], timeout=HANGS_SECONDS)
        if not self._reading.done():
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    def take(self, reading: Reading | None, inputs: CheckupInputs, *, now: float, at: float) -> bool:
        """Update the conditions; return True if one changed."""
        clock = self.clock.verdict()
        node = [
            self._driver.verdict(
                inputs.inventory,
                reading.driver if reading is not None else None,
                claims_run=inputs.claims_run,
                hangs=reading is None,
            ),
            self._arbiter.verdict(inputs.arbiter, now=now),
            environment_checks.disks(self._directories, least_bytes=self._least_bytes),
            environment_checks.library(self._libraries),
            *([clock] if clock is not None else []),
            *inputs.more,
        ]
        return self.health.update(reading.metrics if reading is not None else (), node, now=now, at=at)

    def xid_events(self, reading: Reading | None, *, now: float, at: float) -> list[wire.Event]:
        """Return an event for each new XID error, limited per minute."""
        found = [(one.gpu_uuid, number) for one in (reading.metrics if reading else ()) for number in one.xids]
        return [
            wire.Event(at=at, code="xid", detail=f"XID {number} on {uuid}: {xids.describe(number)}.")
            for uuid, number in found
            if self._limiter.admits(now)
        ]

    def _read_metrics(self) -> Reading:
        return Reading(self._reader.read(), self._reader.driver())


def create(
    settings: Settings,
    nvml: Nvml,
    run_dir: Path,
    in_nvml_thread: Callable[[Callable[[], Reading]], Awaitable[Reading]],
) -> Checkup:
    """Create the checkup as the settings say."""
    health_file = settings.state_dir / "health.json"
    return Checkup(
        HealthReader(nvml),
        Health(health_file, hold_seconds=settings.hold_seconds, boot=processes.boot_id()),
        directories=(settings.state_dir, run_dir),
        libraries=(settings.library.path, settings.pages_library),
        least_bytes=settings.least_free_bytes,
        in_nvml_thread=in_nvml_thread,
    )
