"""Reports of the GPUs' health to the server twice a minute: readings, the last XID error, and processes.

These values change slowly and only the latest counts, so they are no part of the usage frame of each second.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec import structs

from agent import wire
from agent.claims.gpu_processes import GpuProcesses
from agent.host import processes, xids
from agent.host.gpus import Listed, Nvml
from agent.host.health import Health
from agent.host.readings import GpuReader
from agent.node import Node
from agent.server.outbox import Outbox
from agent.settings import Settings

# The time of the first report after the start.
FIRST_SECONDS = 1.0


class _Answers(NamedTuple):
    gpus: list[wire.GpuHealth]
    processes: list[Listed]


class HealthReports:
    """The reporter of one node. `in_nvml_thread` runs a call in the NVML thread and awaits it."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        nvml: Nvml,
        health: Health,
        in_nvml_thread: Callable[[Callable[[], _Answers]], Awaitable[_Answers]],
    ) -> None:
        self._seconds = settings.health_seconds
        self._node = node
        self._nvml = nvml
        self._reader = GpuReader(nvml)
        self._health = health
        self._processes = GpuProcesses(
            pids_are_ours=settings.library.simulated_node is not None or processes.sees_all()
        )
        self._in_nvml_thread = in_nvml_thread
        # The last report; None before the first.
        self.latest: wire.Health | None = None

    async def run(self, outbox: Outbox) -> None:
        """Report until cancelled."""
        # The first reading is only what GPM's next is compared with.
        await self._in_nvml_thread(self._read)
        await asyncio.sleep(min(FIRST_SECONDS, self._seconds))
        while True:
            answers = await self._in_nvml_thread(self._read)
            self.latest = wire.Health(
                at=time.time(),
                gpus=[self._with_xid(one) for one in answers.gpus[: wire.MAX_GPUS]],
                processes=self._processes.describe(answers.processes, self._node.runtimes),
            )
            outbox.put_health(self.latest)
            await asyncio.sleep(self._seconds)

    def _read(self) -> _Answers:
        return _Answers(self._reader.read(), self._nvml.processes())

    def _with_xid(self, one: wire.GpuHealth) -> wire.GpuHealth:
        error = self._health.last_xids.get(one.uuid)
        if error is None:
            return one
        meaning, cure = xids.describe(error.number), xids.cure(error.number).value
        return structs.replace(
            one, last_xid=error.number, last_xid_at=error.at, last_xid_meaning=meaning, last_xid_cure=cure
        )
