"""The processes on the GPUs with their commands and claims, as operators see them."""

from collections.abc import Mapping, Sequence

from agent import wire
from agent.claims.attribution import GpuAttribution
from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.gpus import Listed
from agent.host.processes import Process

UNKNOWN = "?"


class GpuProcesses:
    """The descriptions of NVML's lists. `pids_are_ours`: NVML counts processes as this agent's pid namespace does."""

    def __init__(self, *, pids_are_ours: bool) -> None:
        self._pids_are_ours = pids_are_ours
        self._attribution = GpuAttribution()

    def describe(self, listed: Sequence[Listed], runtimes: Mapping[str, ClaimRuntime]) -> list[wire.GpuProcess]:
        """Return the processes, the most memory first; of one that this agent cannot see, the command is `?`."""
        found = {one.pid: self._find(one.pid) for one in listed}
        self._attribution.begin_audit({process for process in found.values() if process is not None})
        rows = [self._describe(one, found[one.pid], runtimes) for one in listed]
        return sorted(rows, key=lambda row: (-(row.memory_bytes or 0), row.pid))[: wire.MAX_PROCESSES]

    def _find(self, pid: int) -> Process | None:
        process = processes.find(pid)
        # In another pid namespace, another process has the number.
        certain = process is not None and (self._pids_are_ours or processes.has_open(process, "/dev/nvidia"))
        return process if certain else None

    def _describe(self, one: Listed, process: Process | None, runtimes: Mapping[str, ClaimRuntime]) -> wire.GpuProcess:
        return wire.GpuProcess(
            pid=one.pid,
            command=(processes.command(process)[:200] if process is not None else "") or UNKNOWN,
            gpu_uuid=one.physical_gpu,
            memory_bytes=one.memory_bytes,
            claim_uid=self._attribution.claim(process, runtimes) if process is not None else None,
        )
