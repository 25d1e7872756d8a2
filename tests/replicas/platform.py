"""A running platform of several replicas, for tests and benchmarks."""

import http.client
import os
import signal
import threading
import time
import urllib.error
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from tests.platform import Answer, Json, Platform
from tests.replicas import databases

LOST = (urllib.error.URLError, http.client.HTTPException, OSError)


# Times without a success are recorded from this length on.
GAP_SECONDS = 3.0


@dataclass(frozen=True)
class Gap:
    """A time in which no request succeeded, by the monotonic clock, and the answers during it."""

    begun: float
    seconds: float
    answers: Counter[str]


@dataclass
class Seen:
    """Answers to all clients together."""

    # By status and code of the problem, or the error's name where a connection was lost.
    answers: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    # 503s without Retry-After.
    without_retry_after: int = 0
    # The longest time in which no request succeeded, the longest in which none was answered but by 503, and the
    # moments of the last such answers.
    gap: float = 0.0
    outage: float = 0.0
    gaps: list[Gap] = field(default_factory=list)
    # Moments of kills, and what was killed.
    kills: list[tuple[float, str]] = field(default_factory=list)
    succeeded_at: float = 0.0
    answered_at: float = 0.0
    _since: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, begun: float, answer: Answer | None, error: Exception | None) -> None:
        """Record the end of a request; one of the two is None."""
        now = time.monotonic()
        with self._lock:
            kind = _kind(answer, error)
            self.answers[kind] += 1
            self._since[kind] += 1
            self.longest = max(self.longest, now - begun)
            if answer is not None and answer.status == 503 and "retry-after" not in answer.headers:
                self.without_retry_after += 1
            if answer is not None and answer.status != 503:
                self.outage = max(self.outage, now - (self.answered_at or now))
                self.answered_at = now
            if answer is not None and answer.status < 300:
                self._end_gap(now)

    def killed_in(self, gap: Gap) -> list[str]:
        """Return what was killed during a gap, or up to two seconds before it, in order."""
        return [part for at, part in self.kills if gap.begun - 2 <= at <= gap.begun + gap.seconds]

    def _end_gap(self, now: float) -> None:
        """Record the time since the last success."""
        seconds = now - (self.succeeded_at or now)
        self.gap, since, self._since = max(self.gap, seconds), self._since, Counter()
        if seconds >= GAP_SECONDS:
            self.gaps.append(Gap(self.succeeded_at, seconds, since))
        self.succeeded_at = now


def _kind(answer: Answer | None, error: Exception | None) -> str:
    if answer is None:
        return type(error).__name__
    code = answer.body.get("type", "") if isinstance(answer.body, dict) and answer.status >= 400 else ""
    return f"{answer.status} {code.removeprefix('/problems/')}".strip()


class Replicas(Platform):
    """A platform behind a balancer, whose URL is the balancer's."""

    launcher = "tests.replicas"
    # Set to record what clients see.
    seen: Seen | None = None

    def call(
        self, method: str, path: str, body: Json | None = None, *, token: str | None = None, **headers: str
    ) -> Answer:
        """Send a request to the API through the balancer, on a connection of its own."""
        begun, answer, lost = time.monotonic(), None, None
        try:
            answer = super().call(method, path, body, token=token, **headers)
        except LOST as error:
            lost = error
            raise
        finally:
            if self.seen is not None:
                self.seen.record(begun, answer, lost)
        return answer

    @property
    def web_ports(self) -> list[int]:
        """Return the ports of the web servers, in the order of their names."""
        return list(map(int, (self.state / "web.ports").read_text().split()))

    def kill(self, name: str) -> int:
        """Kill a part by SIGKILL, a database with all of its processes; the supervisor restarts it."""
        pid = self.pid(name)
        with suppress(ProcessLookupError, FileNotFoundError):
            if name.startswith("postgres"):
                databases.kill_all(pid)
            else:
                os.kill(pid, signal.SIGKILL)
        return pid

    @property
    def primary(self) -> str:
        """Return the name of the primary."""
        return f"postgres-{databases.primary(self.state)}"
