"""A part is killed, or loses its memory, during resizes; soon after its return everything is as acknowledged.

The claims' programs run on throughout. The last acknowledged limits are in the database and on the pages, and the
running process applies them.
"""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from benchmarks.echo import Echo
from deploy.embedded import valkey
from tests.e2e.test_chaos import GPULOAD, assert_consistent, insist
from tests.platform import Json, Platform, until
from tests.processes import alive

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

# Alone it takes two to five (docs/benchmarks.md); other platforms of the tests run beside this one.
HEALED_SECONDS = 60.0
RESIZES = 6


@pytest.fixture
def tenant(platform: Platform) -> str:
    return platform.new_tenant(f"healing-{uuid.uuid4().hex[:8]}")


class Running:
    """A claim, its program, and its last acknowledged limits."""

    def __init__(self, platform: Platform, tenant: str, log: Path) -> None:
        self.platform, self.tenant = platform, tenant
        body = {"tenant": tenant, "name": "steady", "core_request": 20, "memory_mib": 4096}
        claim = platform.granted("POST", "claims/?wait=30", body)
        self.uid = claim["uid"]
        self.acknowledged: Json = claim
        self.program: subprocess.Popen[bytes] = platform.run(
            self.uid, GPULOAD, "--memory", "1GiB", "--kernel-us", "1000", log=log
        )
        run_dir = Path(platform.granted("GET", f"claims/{self.uid}/env/")["agent_socket"]).parent
        self.echo = until(lambda: self._echo(run_dir), what="the program's slot")

    def _echo(self, run_dir: Path) -> Echo | None:
        echo = Echo(run_dir, self.uid)
        return echo if echo.generation() == self.acknowledged["generation"] else None

    def resize(self, core_limit: int) -> None:
        """Resize as a careful client does: until it is answered."""
        answer = insist(self.platform, "PATCH", f"claims/{self.uid}/", {"core_limit": core_limit})
        assert answer.status == 200, answer
        self.acknowledged = answer.body

    def check(self, seconds: float = HEALED_SECONDS) -> None:
        """Check that observed equals desired equals acknowledged, in the process too."""
        wanted = self.acknowledged

        def healed() -> bool:
            claim: Json = self.platform.granted("GET", f"claims/{self.uid}/")
            assert claim["generation"] >= wanted["generation"]
            assert claim["assignments"][0]["core_limit"] == wanted["assignments"][0]["core_limit"]
            return bool(
                claim["observed_generation"] == claim["generation"]
                and claim["state"] == "active"
                and self.echo.generation() == claim["generation"]
            )

        until(healed, seconds=seconds, what="observed to equal desired")
        assert self.program.poll() is None
        assert_consistent(self.platform, self.tenant)

    def end(self) -> None:
        self.program.kill()
        self.program.wait()
        insist(self.platform, "DELETE", f"claims/{self.uid}/")


@pytest.fixture
def running(platform: Platform, tenant: str, tmp_path: Path) -> Iterator[Running]:
    it = Running(platform, tenant, tmp_path / "program.log")
    yield it
    it.end()


def answers(platform: Platform) -> bool:
    """Return True if database, Redis and server answer."""
    try:
        return platform.call("GET", "me/").status == 200
    except OSError:
        return False


def kill(part: str) -> Callable[[Platform], None]:
    def harm(platform: Platform) -> None:
        killed = platform.kill(part)
        until(lambda: not alive(killed), what=f"{part} to be dead")

    harm.__name__ = part
    return harm


def flush(platform: Platform) -> None:
    """Flush Redis: groups, messages, the cache, the worker's queue."""
    client = redis.Redis.from_url(valkey.url(platform.state))
    client.flushall()
    client.close()


PARTS = ["server", "worker", "scheduler", "valkey", "postgres", "agent-sim-1"]


@pytest.mark.parametrize("harm", [*map(kill, PARTS), flush], ids=lambda harm: harm.__name__)
def test_soon_after_the_part_is_back_all_is_as_acknowledged(
    platform: Platform, running: Running, harm: Callable[[Platform], None]
) -> None:
    for number in range(RESIZES):
        if number == RESIZES // 2:
            harm(platform)
        running.resize(30 + 10 * (number % 4))
    part = harm.__name__
    until(lambda: answers(platform), what="the API to answer")
    if part in PARTS:
        platform.pid(part)
    running.check()
    # And later resizes are as quick as ever.
    running.resize(25)
    running.check()
