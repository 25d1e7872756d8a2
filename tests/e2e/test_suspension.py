"""A claim is suspended and resumed the whole way: REST, server, agent, driver, program."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claims import Claims
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[Claims]:
    it = Claims(platform, tmp_path)
    try:
        yield it
    finally:
        it.end()


def test_a_program_stands_still_while_its_claim_is_suspended(platform: Platform, claims: Claims) -> None:
    claim = claims.ask(core_request=50)["uid"]
    program, echo = claims.run(claim)

    answer = platform.granted("POST", f"claims/{claim}/suspend/?wait=60", {})
    assert (answer["state"], program.poll()) == ("suspended", None)
    assert answer["host_memory_mib"] > 0
    worked = echo.gpu_time_ns()
    time.sleep(1)
    assert echo.gpu_time_ns() == worked

    answer = platform.granted("POST", f"claims/{claim}/resume/?wait=60", {})
    assert answer["state"] == "active"
    until(lambda: echo.gpu_time_ns() > worked + 100_000_000, seconds=20, what="the program to go on")
    assert program.poll() is None
    # Given back once the limits were observed in force.
    until(lambda: not claims.read(claim)["host_memory_mib"], seconds=10, what="the host memory to be free")
