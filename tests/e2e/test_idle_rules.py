"""Idle rules in one pool.

An idle program lends its guarantee and wakes unharmed; an unused claim is released; a working one is left alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.waking import sleep_now, wake
from tests.claims import Claims
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.long, pytest.mark.timeout(240)]

GUARANTEE = 60
RULE = {"idle_rule": "shrink", "idle_seconds": 10, "unused_seconds": 10, "idle_grace_seconds": 5}
NO_RULE = {"idle_rule": "off", "unused_seconds": None}


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[Claims]:
    """Create claims in a pool with idle rules."""
    platform.granted("PATCH", "pools/default/", RULE)
    it = Claims(platform, tmp_path)
    try:
        yield it
    finally:
        platform.granted("PATCH", "pools/default/", NO_RULE)
        it.end()


def test_idle_claims_shrink_and_wake_unused_ones_go_and_working_ones_stay(platform: Platform, claims: Claims) -> None:
    idle, busy = (claims.ask(core_request=GUARANTEE)["uid"] for _ in range(2))
    unused = claims.ask(core_request=10)["uid"]
    program, echo = claims.run(idle)
    worker, _ = claims.run(busy)
    sleep_now(program.pid)

    until(lambda: claims.read(idle)["lent_core"] == GUARANTEE - 5, seconds=60, what="the idle claim to lend")
    assert claims.read(idle)["idle_reason"] == "idle"
    until(lambda: claims.read(unused)["state"] == "released", seconds=60, what="the unused claim to go")
    actions = [row["action"] for row in platform.granted("GET", f"audit/?object_id={unused}")["results"]]
    assert {"claim.idle", "claim.release"} <= set(actions)

    assert wake(echo, program.pid, guarantee_percent=GUARANTEE).seconds < 2
    until(lambda: claims.read(idle)["lent_core"] == 0, seconds=10, what="the books to follow")
    until(lambda: claims.read(idle)["idle_since"] is None, seconds=20, what="the claim to be told awake")
    assert (program.poll(), worker.poll()) == (None, None), "both run on"
    assert claims.read(busy)["idle_since"] is None
    assert claims.read(busy)["lent_core"] == 0
