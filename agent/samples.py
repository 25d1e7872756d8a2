"""The samples of the usage of GPUs and claims: one a second, and soon after a change."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent import wire
from agent.claims.meter import Counted, Meter, with_instances
from agent.claims.remote_figures import Figures
from agent.host.gpus import Nvml
from agent.host.sampling import Schedule, pause
from agent.node import Node
from agent.server.outbox import Outbox, Sequence


class Samples:
    """The loop that samples, and the last sample. `ask` calls NVML in its thread."""

    def __init__(
        self,
        node: Node,
        nvml: Nvml,
        ask: Callable[[Callable[[], list[wire.GpuUsage]]], Awaitable[list[wire.GpuUsage]]],
        sequence: Sequence,
        remote: Figures,
    ) -> None:
        self._node, self._nvml, self._ask, self._sequence = node, nvml, ask, sequence
        self._remote = remote
        self._meter, self._schedule = Meter(), Schedule(now=time.monotonic())
        self._now = asyncio.Event()
        # None before the first sample.
        self.latest: wire.Usage | None = None

    @property
    def counted(self) -> Mapping[str, Counted]:
        """The sums of the assignments that borrow memory, by uid."""
        return self._meter.counted

    @property
    def longest_kernels(self) -> Mapping[str, float]:
        """The longest kernel of each assignment, in seconds, by uid."""
        return self._meter.longest_kernels

    def note_change(self, *, now: float) -> None:
        """Schedule extra samples soon after a change was applied."""
        self._schedule.note_change(now=now)
        self._now.set()

    async def run(self, outbox: Outbox) -> None:
        """Sample until cancelled; queue each sample for the server."""
        # The first reading is only what the next is compared with.
        self._node.step(now=time.monotonic())
        self._meter.read(self._node.runtimes, now=time.monotonic())
        while True:
            await pause(self._now, self._schedule.next - time.monotonic())
            now = time.monotonic()
            if now < self._schedule.next:
                continue
            self._schedule.note_sample(now=now)
            gpus = await self._ask(self._nvml.sample)
            self.latest = self._take(gpus)
            outbox.keep(self.latest)

    def _take(self, gpus: list[wire.GpuUsage]) -> wire.Usage:
        now = time.monotonic()
        self._node.step(now=now)
        suspended, parts = self._node.suspensions.find_suspended(), self._node.parts_of_gpus()
        assignments = self._meter.read(self._node.runtimes, now=now, suspended=suspended, parts_of_gpus=parts)
        gpus = with_instances(gpus, assignments, self._node.desired)
        if used := self._remote.read(now=now):
            assignments = _with_remote(assignments, used, self._node.desired)
        return wire.Usage(seq=self._sequence.next(), at=time.time(), gpus=gpus, assignments=assignments)


def _with_remote(
    items: list[wire.AssignmentUsage], used: dict[str, wire.RemoteUse], desired: wire.Desired | None
) -> list[wire.AssignmentUsage]:
    """Return the usage with what remote clients of each claim use, beside its first assignment."""
    claims = {one.uid: one.claim_uid for one in desired.assignments} if desired is not None else {}
    left = dict(used)
    return [
        item
        if (found := left.pop(claims.get(item.uid, ""), None)) is None
        else msgspec.structs.replace(item, remote=found)
        for item in items
    ]
