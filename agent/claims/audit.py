"""Finding GPU processes that no limit holds: preloading is cooperative, so somebody has to look.

NVML shows every process on a GPU; libvcuda's slots in the usage pages show those that are held. What stands in the
first list and not in the second unset LD_PRELOAD, is linked statically, forged its slot, or was never anybody's claim.
What holds more memory than its slot says uses some that nobody limits. What of a claim computes more than its limit
allows launches past the library (`shares`).

Pure of I/O but for /proc: who looks, and what becomes of a finding, is the daemon's.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from agent import wire
from agent.claims.claim import Holding, gpu_key
from agent.claims.gpu_attribution import Belonging
from agent.claims.shares import Key, Measured, Over, Shares
from agent.host import processes
from agent.host.gpus import Listed
from agent.host.processes import Process

Code = Literal["process-unlimited", "memory-over-limit", "core-over-limit"]

LOOK_SECONDS = 0.5
# What nothing limits is reported within this, from when NVML lists it: the docs promise it.
PROMISED_SECONDS = 2.0
# Between a process's context and its slot, and between a page that is written and one that is read. libvcuda takes the
# slot in cuInit, before there is a context. A look's distance comes before it, and what NVML's answers take.
GRACE_SECONDS = 1.0
# Page and NVML are not read at the same moment, and a program may take and free without a pause. So all of NVML's
# readings over this time must be above all of the page's: where memory is held half of the time, once in 4^12.
MEMORY_SECONDS = 6.0
# NVML counts a kernel that the library let through like one that went past it, and no limit holds one that runs:
# a collective operation that waits for its peers computes for many seconds, and its claim owes them afterwards. So what
# computes too much is told of, but not acted on before it has been so, look by look, for longer than that.
CORE_LASTING_SECONDS = 60.0
# What drivers take for themselves without telling.
TOLERANCE_BYTES = 64 << 20
# Where libvcuda does not see what the driver takes from the kernel, and in a container cannot ask NVML about itself,
# its contexts, modules and stacks are an estimate; a context alone is half a gigabyte.
ESTIMATE_BYTES = 1 << 30
# A tenant that starts one after the other must not fill the log of the whole platform.
MOST_REPORTS = 30
MOST_REPORTS_SECONDS = 60.0


class Finding(NamedTuple):
    """A process that no limit holds, or not all of it."""

    code: Code
    process: Process
    facts: wire.GpuProcess
    # In words, with what to think of it.
    detail: str
    # Whether this surely is the process that NVML means: in a pid namespace of its own another may have its number.
    is_certain: bool
    # Whether it has been so for long enough that something may be done about it.
    is_lasting: bool = True


class _Look(NamedTuple):
    at: float
    measured_bytes: int
    # The most that the page explains.
    explained_bytes: int


class _Watched:
    """One process on one GPU, over the last looks."""

    def __init__(self) -> None:
        self.without_slot_since: float | None = None
        self.looks: deque[_Look] = deque()

    def unheld(self, now: float) -> bool:
        """Without a slot for longer than a process needs to get one."""
        return self.without_slot_since is not None and now - self.without_slot_since >= GRACE_SECONDS

    def excess(self, now: float) -> bool:
        """Above what it accounts for, at every look for long enough."""
        while self.looks and now - self.looks[0].at > MEMORY_SECONDS + LOOK_SECONDS:
            self.looks.popleft()
        if not self.looks or now - self.looks[0].at < MEMORY_SECONDS:
            return False
        measured = min(look.measured_bytes for look in self.looks)
        return measured > max(look.explained_bytes for look in self.looks)


class Audit:
    """The GPU processes of this node as they were seen so far.

    `pids_are_ours` says that NVML's pids count in this pid namespace: everywhere but in a container of its own, where a
    process is believed to be the one meant only if it holds the driver's device open.
    """

    def __init__(self, *, pids_are_ours: bool) -> None:
        self._pids_are_ours = pids_are_ours
        self._belonging = Belonging()
        self._shares = Shares()
        self._over: dict[Key, Over] = {}
        self._over_since: dict[Key, float] = {}
        self._watched: dict[tuple[Process, str], _Watched] = {}
        self._reported: set[tuple[Process, Code]] = set()
        self._reports_at: deque[float] = deque()
        # What holds at present, reported or about to be.
        self.findings: list[Finding] = []
        # On the GPUs but not to be seen from here.
        self.unseen = 0

    def look(
        self, listed: Sequence[Listed], holdings: Mapping[str, Holding], *, now: float, measured: Measured | None = None
    ) -> list[Finding]:
        """Take NVML's list, what it measured of each process, and the holdings as just refreshed; what is news.

        A process is news once for each code; it leaves `findings` when it ends or when the cause does.
        """
        seen = self._find(listed)
        living = {process for process, _ in seen}
        self._belonging.keep(living)
        self._watched = {key: self._watched.get(key, _Watched()) for key in seen}
        # One that leaves the GPU and comes back, or a list that the driver did not give this once, is no news.
        self._reported = {
            (process, code) for process, code in self._reported if process in living or processes.alive(process)
        }
        self._over = self._shares.take(measured or {}, self._pids(seen, holdings), holdings, now=now)
        self._over_since = {key: self._over_since.get(key, now) for key in self._over}
        found = (self._judge(process, one, holdings, now) for (process, _), one in seen.items())
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
        self, seen: Mapping[tuple[Process, str], Listed], holdings: Mapping[str, Holding]
    ) -> dict[Key, list[int]]:
        """The processes for which each claim answers on each GPU: never one of which only its own word says so."""
        found: dict[Key, list[int]] = {}
        for process, gpu_uuid in seen:
            claim_uid = self._belonging.claim(process, holdings) or ""
            holding = holdings.get(claim_uid)
            if holding is None:
                continue
            has_slot = (process, gpu_key(gpu_uuid)) in holding.accounted
            if has_slot or self._belonging.is_member(process, claim_uid, holdings):
                found.setdefault((claim_uid, gpu_uuid), []).append(process.pid)
        return found

    def _judge(self, process: Process, one: Listed, holdings: Mapping[str, Holding], now: float) -> Finding | None:
        watched = self._watched[process, one.gpu_uuid]
        claim_uid = self._belonging.claim(process, holdings)
        holding = holdings.get(claim_uid or "")
        accounted = holding.accounted.get((process, gpu_key(one.gpu_uuid))) if holding is not None else None
        if accounted is None:
            watched.looks.clear()
            watched.without_slot_since = now if watched.without_slot_since is None else watched.without_slot_since
            unheld = watched.unheld(now)
            return self._finding("process-unlimited", process, one, claim_uid, _unheld(holding)) if unheld else None
        watched.without_slot_since = None
        if one.memory_bytes is not None:
            tolerance = TOLERANCE_BYTES if accounted.to_the_byte else ESTIMATE_BYTES
            watched.looks.append(_Look(now, one.memory_bytes, accounted.memory_bytes + tolerance))
        if not watched.excess(now):
            return self._core(process, one, claim_uid, now)
        words = f"holds {one.memory_bytes} bytes of the GPU; its usage page accounts for {accounted.memory_bytes}"
        return self._finding("memory-over-limit", process, one, claim_uid, words)

    def _core(self, process: Process, one: Listed, claim_uid: str | None, now: float) -> Finding | None:
        """Where its claim is above its share; libvcuda's account of the claim says nothing against it."""
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
            gpu_uuid=one.gpu_uuid,
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


def _unheld(holding: Holding | None) -> str:
    if holding is None:
        return "uses a GPU of this node outside of every claim, so that nothing limits it"
    if holding.damaged:
        return "belongs to a claim whose usage page is damaged, so that nothing shows what it uses"
    return (
        "has no slot in the claim's usage page, so that nothing limits it: it was started without LD_PRELOAD, is "
        "linked statically, or forged or erased its slot"
    )
