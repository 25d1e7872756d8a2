"""Actions on the audit's findings: report, end the process, or leave it to the server to fence the node.

Policy `kill` ends a process that surely is the one that NVML lists as computing on a GPU, and that belongs to a claim
of this node; or to no claim, and to a person's user (uid 1000 and up), not to a system user. It never ends one that
NVML also lists as drawing (a display server is one), nor the agent, nor a process that NVML does not list. SIGTERM
comes first, SIGKILL after the grace that a released claim's programs get. Each signal is an event that gives the
reason; signals are limited per minute, and the remaining processes get theirs in the next minute.
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent import wire
from agent.claims.audit import Audit, Finding
from agent.claims.claim import ClaimRuntime
from agent.claims.shares import Measured
from agent.host import processes
from agent.host.gpus import Listed
from agent.host.health import Verdict
from agent.host.processes import Process
from agent.host.rate_limiter import RateLimiter
from agent.local_wire import AuditMode
from agent.logs import log
from agent.settings import Settings

# As useradd counts: lower uids are system users. `nobody` is one too.
FIRST_PERSON = 1000
NOBODY = 65534
MOST_ENDED = 30
REASONS = {
    "process-unlimited": "ProcessUnlimited",
    "memory-over-limit": "MemoryOverLimit",
    "core-over-limit": "CoreOverLimit",
}


class Auditor:
    """Actions on one node's audit. `mode`: the machine owner's setting, which overrides the pool's; None: not set."""

    def __init__(
        self, audit: Audit, *, mode: AuditMode | None, grace_seconds: float, tell: Callable[[wire.Event], None]
    ) -> None:
        self.audit = audit
        self._set = mode
        self._pool: wire.AuditPolicy = "warn"
        self._grace_seconds = grace_seconds
        self._tell = tell
        self._limiter = RateLimiter(MOST_ENDED)
        # Processes that got SIGTERM: when (by the monotonic clock), and True if SIGKILL followed.
        self._ending: dict[Process, tuple[float, bool]] = {}
        # When the newest finding appeared, in seconds since 1970.
        self._newest_at = 0.0
        self._known: set[Process] = set()

    @property
    def mode(self) -> AuditMode | wire.AuditPolicy:
        """Return the policy in force for findings."""
        return self._set or self._pool

    def follow(self, policy: wire.AuditPolicy) -> None:
        """Set the pool's policy."""
        self._pool = policy

    def take(
        self,
        listed: Sequence[Listed],
        drawing: set[int],
        runtimes: Mapping[str, ClaimRuntime],
        *,
        now: float,
        at: float,
        measured: Measured | None = None,
    ) -> None:
        """Run the audit, report new findings, end what the policy ends. `drawing`: pids that NVML lists as drawing."""
        news = self.audit.run(listed, runtimes, now=now, measured=measured)
        findings = self.audit.findings
        # The processes for which the server fences a node.
        found = {finding.process for finding in findings if finding.is_lasting}
        if found - self._known:
            self._newest_at = at
        self._known = found
        for finding in news:
            log.warning(finding.code, detail=finding.detail)
            self._tell(wire.Event(at=at, code=finding.code, detail=finding.detail, process=finding.facts))
        self._ending = {one: state for one, state in self._ending.items() if one in found}
        if self.mode == "kill":
            for finding in findings:
                if (
                    finding.is_certain
                    and finding.is_lasting
                    and finding.process.pid not in drawing
                    and may_end(finding)
                ):
                    self._end(finding, now=now, at=at)

    def verdict(self) -> Verdict:
        """Return the node condition: every process on the GPUs is limited, or the first one that is not."""
        kind = wire.ConditionType.PROCESSES_LIMITED
        lasting = [finding for finding in self.audit.findings if finding.is_lasting]
        if not lasting:
            return Verdict(kind, at_once=True)
        first = lasting[0]
        more = len(self._known) - 1
        words = first.detail + (f" {more} more." if more else "")
        # A new process is a new condition: a process for which an operator lifted the fence may continue.
        return Verdict(kind, REASONS[first.code], words, at_once=True, since=self._newest_at)

    def _end(self, finding: Finding, *, now: float, at: float) -> None:
        begun, killed = self._ending.get(finding.process, (None, False))
        if killed or (begun is not None and now - begun < self._grace_seconds):
            return
        if begun is None and not self._limiter.admits(now):
            return
        number = signal.SIGTERM if begun is None else signal.SIGKILL
        if not processes.send(finding.process, number):
            return
        self._ending[finding.process] = (now if begun is None else begun, begun is not None)
        whose = "this machine's GPUCLOUD_AUDIT" if self._set else "the pool's audit_policy"
        words = f"{finding.detail} It got {number.name}, as {whose} orders: kill."
        code = "process-ended" if begun is None else "process-killed"
        log.warning(code, pid=finding.process.pid, why=finding.code)
        self._tell(wire.Event(at=at, code=code, detail=words, process=finding.facts))


def may_end(finding: Finding) -> bool:
    """Return whether policy `kill` applies to this process."""
    if finding.process == processes.myself():
        return False
    if finding.facts.claim_uid is not None:
        return True
    try:
        uid = Path(f"/proc/{finding.process.pid}").stat().st_uid
    except OSError:
        return False
    return uid >= FIRST_PERSON and uid != NOBODY


def create(settings: Settings, tell: Callable[[wire.Event], None]) -> Auditor:
    """Create an auditor as the settings say."""
    simulated = settings.library.simulated_node is not None
    audit = Audit(pids_are_ours=simulated or processes.sees_all())
    return Auditor(audit, mode=settings.audit, grace_seconds=settings.grace_seconds, tell=tell)
