"""Claims' memory limits in the kernel, beside libvcuda's own: they also limit a program that does not load libvcuda.

Each control group of a claim gets the claim's limit on each of its GPUs: the groups that the agent made for programs
that were started by `agent exec`, and those of containers in which programs of the claim run. Several groups of one
claim get the whole limit each, as nothing in the kernel sums them; libvcuda limits their sum. A container under several
claims may use the sum of their limits.

The limits are set once a second, and at once after a change; with a driver older than r615, never.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from agent.claims import attribution
from agent.claims.limited_groups import Key, LimitedGroups
from agent.host import cgroups
from agent.host.gpus import Nvml
from agent.host.health import Verdict
from agent.host.processes import Process
from agent.host.rate_limiter import RateLimiter
from agent.host.sampling import pause
from agent.node import Node
from agent.wire import ConditionType

LOOK_SECONDS = 1.0
# A tenant whose groups cannot be limited must not fill the log of the whole platform.
MOST_REPORTS = 30


class KernelLimits:
    """The reconciler of the kernel's limits with one node's claims. `report` sends each failure to the server once."""

    def __init__(
        self,
        node: Node,
        nvml: Nvml,
        run_dir: Path,
        in_nvml_thread: Callable[[Callable[[], None]], Awaitable[None]],
        report: Callable[[str, str], None],
    ) -> None:
        self._node = node
        self._nvml = nvml
        self._groups = LimitedGroups(run_dir / "kernel-limits.json")
        self._in_nvml_thread = in_nvml_thread
        self._report = report
        self._limiter = RateLimiter(MOST_REPORTS)
        self._reported: set[Key] = set()
        self._attributed: dict[str, set[Process]] = {}
        # Set: something changed that is to be in the kernel now.
        self.check_now = asyncio.Event()

    async def run(self) -> None:
        """Keep the limits up to date until cancelled."""
        while True:
            changed = await pause(self.check_now, LOOK_SECONDS)
            if not self.is_available:
                continue
            if not self._node.runtimes and self._groups.is_empty:
                continue
            # 1. Attribute the machine's processes to claims; a change of a limit need not wait for that.
            if not changed:
                self._attributed = self._node.attribute(await asyncio.to_thread(attribution.read_processes))
            # 2. Set and clear limits.
            wanted = self._wanted_limits()
            await self._in_nvml_thread(lambda: self._groups.sync(wanted, self._nvml.handles))  # noqa: B023 - awaited
            # 3. Report the limits that could not be set.
            self._report_failures(asyncio.get_running_loop().time())

    @property
    def is_available(self) -> bool:
        """True if the driver has such limits and this machine has control groups to set them on."""
        hierarchy = self._node.hierarchy
        has_groups = hierarchy is not None and hierarchy.version == 2 and cgroups.sees_all()
        return has_groups and self._nvml.latest.limits_memory

    def verdicts(self) -> list[Verdict]:
        """Return the condition that every claim's limit is set; an empty list if there is none to set."""
        if not self.is_available:
            return []
        kind, failures = ConditionType.KERNEL_LIMITS_SET, self._groups.failures
        if not failures:
            return [Verdict(kind, at_once=True)]
        first, *others = sorted(failures)
        words = f"{_describe(first, failures[first])}{f' {len(others)} more.' if others else ''}"
        return [Verdict(kind, "KernelLimitNotSet", words, at_once=True)]

    def _report_failures(self, now: float) -> None:
        failures = self._groups.failures
        self._reported &= failures.keys()
        for key in sorted(failures.keys() - self._reported):
            if not self._limiter.admits(now):
                return
            self._reported.add(key)
            self._report("kernel-limit-not-set", _describe(key, failures[key]))

    def _wanted_limits(self) -> dict[Key, int]:
        capacity = {gpu.uuid: gpu.memory_bytes for gpu in self._nvml.latest.gpus}
        wanted: dict[Key, int] = {}
        for group, claims in self._claims_of_groups().items():
            for slot in (slot for uid in claims for slot in self._node.runtimes[uid].slots.values()):
                # MIG instances have no such limit.
                gpu_uuid = f"GPU-{slot.gpu}"
                if gpu_uuid in capacity:
                    key = Key(str(group), gpu_uuid)
                    wanted[key] = min(wanted.get(key, 0) + slot.memory_bytes, capacity[gpu_uuid])
        return wanted

    def _claims_of_groups(self) -> dict[Path, set[str]]:
        runtimes = self._node.runtimes
        found = {path: {uid} for uid, one in runtimes.items() for path in one.members.group_paths}
        # A claim that only the process's own environment names counts if no other is known.
        members = self._containers({uid: one.members.living() for uid, one in runtimes.items()})
        others = self._containers({uid: them for uid, them in self._attributed.items() if uid in runtimes})
        return others | members | found

    def _containers(self, processes: Mapping[str, Iterable[Process]]) -> dict[Path, set[str]]:
        hierarchy = self._node.hierarchy
        assert hierarchy is not None
        mine = hierarchy.path_of("self")
        found: dict[Path, set[str]] = {}
        for uid, them in processes.items():
            for path in {cgroups.container_of(process, hierarchy) for process in them}:
                # The agent's own container belongs to no claim.
                if path is not None and not (mine is not None and mine.is_relative_to(path)):
                    found.setdefault(path, set()).add(uid)
        return found


def _describe(key: Key, reason: str) -> str:
    return (
        f"The kernel does not limit the memory of {key.group} on {key.gpu_uuid}: {reason}. "
        "There libvcuda alone enforces the limit."
    )
