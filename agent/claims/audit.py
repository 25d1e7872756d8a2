"""The audit of GPU processes that no limit holds. Preloading is cooperative, so the agent checks.

NVML lists every process on a GPU; libvcuda's slots in the usage pages list the limited ones. A process that is in the
first list and not in the second unset LD_PRELOAD, is linked statically, forged its slot, or never belonged to a claim.
A process with more memory than its slot says uses memory that nobody limits. A claim that computes more than its limit
allows launches kernels past the library (`shares`).

Pure of I/O but for /proc: the daemon runs the audit and acts on its findings.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from agent import wire
from agent.claims.attribution import GpuAttribution
from agent.claims.claim import ClaimRuntime, gpu_key
from agent.claims.shares import Key, Measured, Over, Shares
from agent.host import processes
from agent.host.gpus import Listed
from agent.host.processes import Process

Code = Literal["process-unlimited", "memory-over-limit", "core-over-limit"]

LOOK_SECONDS = 0.5
# An unlimited process is reported within this time from when NVML lists it: the docs promise it.
PROMISED_SECONDS = 2.0
# The time between a process's context and its slot, and between a page's write and its read. libvcuda takes the slot in
# cuInit, before there is a context. The interval between two audits and the time of NVML's answers come on top.
GRACE_SECONDS = 1.0
# Page and NVML are not read at the same moment, and a program may allocate and free without a pause. So all of NVML's
# readings over this time must be above all of the page's: for memory that is held half of the time, that happens once
# in 4^12.
MEMORY_SECONDS = 6.0
# NVML counts a kernel that the library let through like one that went past it, and no limit stops a running kernel: a
# collective operation that waits for its peers computes for many seconds, and its claim is throttled for it afterwards.
# So an excess is reported at once, but acted on only after it has lasted, audit by audit, for longer than that.
CORE_LASTING_SECONDS = 60.0
# Memory that drivers take for themselves without reporting it.
TOLERANCE_BYTES = 64 << 20
# If libvcuda cannot read the driver's own use from the kernel, and in a container cannot ask NVML about itself,
# contexts, modules and stacks are an estimate; a context alone is half a gigabyte.
ESTIMATE_BYTES = 1 << 30
# A tenant that starts one process after the other must not fill the log of the whole platform.
MOST_REPORTS = 30
MOST_REPORTS_SECONDS = 60.0


class Finding(NamedTuple):
    """A process that no limit holds, or not completely."""

    code: Code
    process: Process
    facts: wire.GpuProcess
    # The finding in words, with its likely causes.
    detail: str
    # True if this surely is the process that NVML lists: with a pid namespace of its own, another may have its number.
    is_certain: bool
    # True if it has lasted long enough to act on it.
    is_lasting: bool = True


class _Sample(NamedTuple):
    at: float
    measured_bytes: int
    # The most memory that the page explains.
    explained_bytes: int


class _Watched:
    """One process on one GPU, over the last audits."""

    def __init__(self) -> None:
        self.without_slot_since: float | None = None
        self.samples: deque[_Sample] = deque()

    def is_unlimited(self, now: float) -> bool:
        """Return whether it has had no slot for longer than a process needs to get one."""
        return self.without_slot_since is not None and now - self.without_slot_since >= GRACE_SECONDS

    def has_excess(self, now: float) -> bool:
        """Return whether it used more memory than its slot accounts for, at every audit for long enough."""
        while self.samples and now - self.samples[0].at > MEMORY_SECONDS + LOOK_SECONDS:
            self.samples.popleft()
        if not self.samples or now - self.samples[0].at < MEMORY_SECONDS:
            return False
        measured = min(sample.measured_bytes for sample in self.samples)
        return measured > max(sample.explained_bytes for sample in self.samples)


class Audit:
    """The GPU processes of this node as the audits found them.

    `pids_are_ours`: True if NVML's pids are valid in this pid namespace: everywhere but in a container with a namespace
    of its own, where a process counts as the listed one only if it has the driver's device open.
    """

    def __init__(self, *, pids_are_ours: bool) -> None:
        self._pids_are_ours = pids_are_ours
        self._attribution = GpuAttribution()
        self._shares = Shares()
        self._over: dict[Key, Over] = {}
        self._over_since: dict[Key, float] = {}
        self._watched: dict[tuple[Process, str], _Watched] = {}
        self._reported: set[tuple[Process, Code]] = set()
        self._reports_at: deque[float] = deque()
        # The present findings, reported or about to be.
        self.findings: list[Finding] = []
        # Processes on the GPUs that this process cannot see.
        self.unseen = 0

    def run(
        self,
        listed: Sequence[Listed],
        runtimes: Mapping[str, ClaimRuntime],
        *,
        now: float,
        measured: Measured | None = None,
    ) -> list[Finding]:
        """Audit NVML's list, its measured shares and the just refreshed runtimes; return the new findings.

        A process is new once per code; it leaves `findings` when it or the cause ends.
        """
        seen = self._find(listed)
        living = {process for process, _ in seen}
        self._attribution.begin_audit(living)
        self._watched = {key: self._watched.get(key, _Watched()) for key in seen}
        # A process that leaves the GPU and returns, or one list that the driver failed to give, is not new.
        self._reported = {
            (process, code) for process, code in self._reported if process in living or processes.alive(process)
        }
        self._over = self._shares.take(measured or {}, self._pids(seen, runtimes), runtimes, now=now)
        self._over_since = {key: self._over_since.get(key, now) for key in self._over}
        found = (self._judge(process, one, runtimes, now) for (process, _), one in seen.items())
        self.findings = [finding for finding in found if finding is not None]
        return [finding for finding in self.findings if self._is_news(finding, now)]

    def _find(self, listed: Sequence[Listed]) -> dict[tuple[Process, str], Listed]:
        seen: dict[tuple[Process, str], Listed] = {}
        self.unseen = 0
        for one in listed:
            process = processes.find(one.pid)
            if process is None or not (self._pids_are_ours or processes.has_open(process, "/dev/nvidia")):
                self.unseen += 1
            else:
                seen[process, one.gpu_uuid] = one
        return seen

    def _pids(
        self, seen: Mapping[tuple[Process, str], Listed], runtimes: Mapping[str, ClaimRuntime]
    ) -> dict[Key, list[int]]:
        """Return the pids for which each claim answers on each GPU.

        A process whose own environment alone names the claim is left out.
        """
        found: dict[Key, list[int]] = {}
        for process, gpu_uuid in seen:
            claim_uid = self._attribution.claim(process, runtimes) or ""
            runtime = runtimes.get(claim_uid)
            if runtime is None:
                continue
            has_slot = (process, gpu_key(gpu_uuid)) in runtime.accounted
            if has_slot or self._attribution.is_member(process, claim_uid, runtimes):
                found.setdefault((claim_uid, gpu_uuid), []).append(process.pid)
        return found

    def _judge(self, process: Process, one: Listed, runtimes: Mapping[str, ClaimRuntime], now: float) -> Finding | None:
        watched = self._watched[process, one.gpu_uuid]
        claim_uid = self._attribution.claim(process, runtimes)
        runtime = runtimes.get(claim_uid or "")
        accounted = runtime.accounted.get((process, gpu_key(one.gpu_uuid))) if runtime is not None else None
        if accounted is None:
            watched.samples.clear()
            watched.without_slot_since = now if watched.without_slot_since is None else watched.without_slot_since
            return (
                self._finding("process-unlimited", process, one, claim_uid, _describe_unlimited(runtime))
                if watched.is_unlimited(now)
                else None
            )
        watched.without_slot_since = None
        if one.memory_bytes is not None:
            tolerance = TOLERANCE_BYTES if accounted.to_the_byte else ESTIMATE_BYTES
            watched.samples.append(_Sample(now, one.memory_bytes, accounted.memory_bytes + tolerance))
        if not watched.has_excess(now):
            return self._core(process, one, claim_uid, now)
        words = f"holds {one.memory_bytes} bytes of the GPU; its usage page accounts for {accounted.memory_bytes}"
        return self._finding("memory-over-limit", process, one, claim_uid, words)

    def _core(self, process: Process, one: Listed, claim_uid: str | None, now: float) -> Finding | None:
        """Return a finding if the process's claim is above its share, though libvcuda's own account is within it."""
        key = claim_uid or "", one.gpu_uuid
        over = self._over.get(key)
        if over is None:
            return None
        words = (
            f"and its claim's other processes used {over.percent:.0f} % of the GPU over the last ten seconds by NVML, "
            f"and the claim may use {over.limit} %: some of that went past the library, or is one kernel of seconds"
        )
        found = self._finding("core-over-limit", process, one, claim_uid, words)
        return found._replace(is_lasting=now - self._over_since[key] >= CORE_LASTING_SECONDS)

    def _finding(self, code: Code, process: Process, one: Listed, claim_uid: str | None, words: str) -> Finding:
        command = processes.command(process)[:200] or "?"
        whose = f"of claim {claim_uid}" if claim_uid else "of no claim"
        facts = wire.GpuProcess(
            pid=process.pid,
            command=command,
            gpu_uuid=one.physical_gpu,
            memory_bytes=one.memory_bytes,
            claim_uid=claim_uid,
        )
        detail = f"Process {process.pid} ({command}) {whose} on {one.gpu_uuid}: it {words}."
        return Finding(code, process, facts, detail, is_certain=self._pids_are_ours)

    def _is_news(self, finding: Finding, now: float) -> bool:
        if (finding.process, finding.code) in self._reported:
            return False
        while self._reports_at and now - self._reports_at[0] > MOST_REPORTS_SECONDS:
            self._reports_at.popleft()
        if len(self._reports_at) >= MOST_REPORTS:
            return False
        self._reports_at.append(now)
        self._reported.add((finding.process, finding.code))
        return True


def _describe_unlimited(runtime: ClaimRuntime | None) -> str:
    if runtime is None:
        return "uses a GPU of this node outside of every claim, so that nothing limits it"
    if runtime.damaged:
        return "belongs to a claim whose usage page is damaged, so that its usage is unknown"
    return (
        "has no slot in the claim's usage page, so that nothing limits it: it was started without LD_PRELOAD, is "
        "linked statically, or forged or erased its slot"
    )
