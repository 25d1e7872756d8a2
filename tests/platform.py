"""A whole platform for tests and benchmarks: as `make demo` starts it, on a port and in a directory of its own."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.ports import free_port
from tests.processes import alive

ROOT = Path(__file__).resolve().parent.parent
# A quarter of a minute on an idle machine.
READY_SECONDS = 300.0
STOP_SECONDS = 90.0
# For events that come soon on an idle machine: other platforms are started and killed on the same cores. Durations are
# measured elsewhere; the tests check that they come.
PATIENCE_SECONDS = 60.0
# The supervisor's longest back-off, and a start on a busy machine.
RESTART_SECONDS = 90.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 0.4
# The platform has its own services, whatever the tests around it use.
NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "REDIS_PREFIX", "SECRET_KEY", "ALLOWED_HOSTS", "DATABASE_POOL_SIZE")

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An HTTP response: its status, its body as JSON (text if it is none), its headers in lower case."""

    status: int
    body: Any
    headers: dict[str, str]


class Platform:
    """A running demo. Use as a context manager; `stop` is orderly, and everything dies with this process anyway.

    The seeded claims' programs run on request only: they would take processor time from every test.
    """

    # Starts everything, and stops it on SIGTERM.
    launcher = "deploy.demo"

    def __init__(self, state: Path, *, programs: bool = False, environment: dict[str, str] | None = None) -> None:
        self.state, self._programs, self._environment = state, programs, environment or {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = state.with_name(state.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, or resume an earlier state.

        Raises AssertionError with the log if it does not start.
        """
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        environment |= {"DEMO_DIR": str(self.state), "PORT": str(self.port), "PYTHONUNBUFFERED": "1"}
        environment |= self._environment
        command = [sys.executable, "-m", self.launcher, "--with-parent"]
        command += [] if self._programs else ["--without-programs"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            until(lambda: self._ready() or self._died(), seconds=READY_SECONDS, what="the platform to be ready")
        except BaseException:
            # The next user of this directory finds it free.
            self.stop()
            raise

    def _ready(self) -> bool:
        return f"ready: {self.url}" in self.log.read_text()

    def _died(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        return False

    def stop(self) -> None:
        """End it in order; kill programs that do not end."""
        if self._process is not None:
            process, self._process = self._process, None
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            finally:
                process.kill()
                process.wait()

    @property
    def token(self) -> str:
        """Return the operator's token."""
        return (self.state / "operator.token").read_text().strip()

    def pid(self, name: str) -> int:
        """Return the pid of a part: server, worker, scheduler, beat, agent-sim-1, …; wait while it restarts."""

        def running() -> int | None:
            pids: dict[str, int] = json.loads((self.state / "pids.json").read_text())
            return pids[name] if name in pids and alive(pids[name]) else None

        number: int = until(running, seconds=RESTART_SECONDS, what=f"{name} to run")
        return number

    def kill(self, name: str) -> int:
        """Kill a part by SIGKILL; the supervisor restarts it. Return the killed pid."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def call(
        self, method: str, path: str, body: Json | None = None, *, token: str | None = None, **headers: str
    ) -> Answer:
        """Send a request to the API, below /api/v1/."""
        request = urllib.request.Request(  # noqa: S310 - the address is ours
            f"{self.url}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.token}",
                "Content-Type": "application/json",
                **{name.replace("_", "-"): value for name, value in headers.items()},
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return _answer(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as refused:
            return _answer(refused.code, refused.read(), dict(refused.headers))

    def granted(self, method: str, path: str, body: Json | None = None, **headers: str) -> Any:
        """Return the body of a request that must succeed."""
        answer = self.call(method, path, body, **headers)
        assert 200 <= answer.status < 300, answer
        return answer.body

    def new_tenant(self, slug: str, *, core: int = 400, memory_mib: int = 98304) -> str:
        """Create a tenant with quotas over all pools."""
        self.granted("POST", "tenants/", {"slug": slug})
        for resource, hard in {"core_percent": core, "memory_mib": memory_mib}.items():
            self.granted("POST", "quotas/", {"tenant": slug, "resource": resource, "hard": hard})
        return slug

    def used(self, slug: str) -> dict[str, int]:
        """Return the used amounts of a tenant's quotas, by resource."""
        return {quota["resource"]: quota["used"] for quota in self.granted("GET", f"quotas/?tenant={slug}")["results"]}

    def gpu(self, uuid: str) -> Json:
        """Return a GPU with its allocations."""
        body: Json = self.granted("GET", f"gpus/{uuid}/")
        return body

    def run(self, claim_uid: str, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command under a claim, as a user on the node would."""
        environment = os.environ | {"GPUCLOUD_URL": self.url, "GPUCLOUD_TOKEN": self.token, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "agent", "exec", claim_uid, "--", *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )


def _answer(status: int, raw: bytes, headers: dict[str, str]) -> Answer:
    try:
        body = json.loads(raw) if raw else None
    except ValueError:
        body = raw.decode(errors="replace")
    return Answer(status, body, {name.lower(): value for name, value in headers.items()})


def until(
    condition: Any, *, what: str, seconds: float = PATIENCE_SECONDS, longest_pause: float = LONGEST_PAUSE_SECONDS
) -> Any:
    """Poll `condition`; return its first true value.

    The longer it lasts, the longer are the pauses: most conditions are requests, and twenty a second take half a core.
    Raises AssertionError after so many seconds.
    """
    pause = FIRST_PAUSE_SECONDS
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(pause)
        pause = min(pause * 1.25, longest_pause)
