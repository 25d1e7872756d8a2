"""Two tenants' programs use one GPU at the same time: each gets its share under the pool's policy, live."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platform import ROOT, Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

GPULOAD = str(ROOT / "libvcuda" / "build" / "gpuload")
POINTS = 6.0
# Fraction of the expected sum; the rest may be lost to other work on the machine.
LEAST_USED = 0.8
# Shares are means over so many seconds: dozens of rounds of the arbiter.
WINDOW_SECONDS = 4
# A busy machine takes time from one or the other now and then; a faulty arbiter always does.
WINDOWS = 8


class Program:
    """A GPU program under a claim of its own."""

    def __init__(self, platform: Platform, tenant: str, log: Path, **asked: int) -> None:
        body = {"tenant": tenant, "core_limit": 100, "memory_mib": 1024, **asked}
        self.claim: Json = platform.granted("POST", "claims/?wait=60", body)
        assert self.claim["state"] == "active", self.claim
        self.gpu: str = self.claim["assignments"][0]["gpu_uuid"]
        self._log = log
        self.process: subprocess.Popen[bytes] = platform.run(
            self.claim["uid"], GPULOAD, "--json", "--kernel-us", "1000", log=log
        )

    @property
    def shares(self) -> list[float]:
        """Return its percent of the GPU, by its own reckoning, second by second."""
        lines = [line for line in self._log.read_text().splitlines() if "share_percent" in line and line.endswith("}")]
        return [float(json.loads(line)["share_percent"]) for line in lines]


@pytest.fixture
def pair(platform: Platform, tmp_path: Path) -> Iterator[tuple[Program, Program]]:
    """Start two programs with unlimited demand, of claims of 30 and 70 percent of the same GPU."""
    tenant = platform.new_tenant(f"pair-{uuid.uuid4().hex[:8]}")
    programs: list[Program] = []
    try:
        programs.append(Program(platform, tenant, tmp_path / "smaller", core_request=30))
        programs.append(Program(platform, tenant, tmp_path / "larger", core_request=70))
        yield programs[0], programs[1]
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()
            platform.granted("DELETE", f"claims/{program.claim['uid']}/?wait=60")


def settle(pair: tuple[Program, Program], expected: tuple[float, float]) -> None:
    """Wait for a window in which both got their shares."""
    seen = []
    for _ in range(WINDOWS):
        begun = [len(program.shares) for program in pair]
        until(
            lambda begun=begun: all(
                len(one.shares) >= had + WINDOW_SECONDS for one, had in zip(pair, begun, strict=True)
            ),
            what="both programs to tell what they got",
        )
        means = [sum(one.shares[-WINDOW_SECONDS:]) / WINDOW_SECONDS for one in pair]
        seen.append(means)
        # Switching costs more on a busy machine: they lose alike, and neither exceeds its share.
        whole = sum(expected) / max(sum(means), LEAST_USED * sum(expected))
        if all(
            got <= wanted + POINTS and abs(got * whole - wanted) <= POINTS
            for got, wanted in zip(means, expected, strict=True)
        ):
            return
    raise AssertionError(f"expected {expected}, and never got it: {seen}")


def test_two_programs_that_want_all_get_their_shares_and_follow_the_pool(
    platform: Platform, pair: tuple[Program, Program]
) -> None:
    assert pair[0].gpu == pair[1].gpu
    settle(pair, (30, 70))
    try:
        # Live: the same processes, at the next push.
        platform.granted("PATCH", "pools/default/", {"sharing_policy": "fair"})
        settle(pair, (50, 50))
        platform.granted("PATCH", "pools/default/", {"sharing_policy": "average", "parts": 4})
        settle(pair, (25, 25))
    finally:
        platform.granted("PATCH", "pools/default/", {"sharing_policy": "burst", "parts": 1})
    assert all(one.process.poll() is None for one in pair)
    # No process within its limits is reported.
    for code in ("process-unlimited", "memory-over-limit"):
        assert platform.granted("GET", f"audit/?action=agent.{code}")["results"] == []
    # Each one's unused part is the other's.
    pair[0].process.terminate()
    pair[0].process.wait()
    until(lambda: pair[1].shares[-1] > 100 - 2 * POINTS, what="the one that is left to get the whole GPU")
