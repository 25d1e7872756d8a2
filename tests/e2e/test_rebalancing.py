"""An idle claim lends its guarantee; a claim refused before runs on it; the lender gets it back when it wakes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.waking import sleep_now, wake
from tests.claims import Claims
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(240)]

GUARANTEE, BORROWED = 80, 60
# The promise is a second; the test measures it anyway, so a busy machine has as much again.
BACK_SECONDS = 2.0


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[Claims]:
    """Create claims in a rebalanced pool, besides the existing ones."""
    others = [row["uid"] for row in platform.granted("GET", "claims/?state=active&limit=200")["results"]]
    for uid in others:
        platform.granted("PATCH", f"claims/{uid}/", {"rebalance": False})
    bounds = {"window_seconds": 5, "cool_down_seconds": 60}
    platform.granted("PATCH", "pools/default/", {"rebalance_mode": "apply", "rebalance_bounds": bounds})
    it = Claims(platform, tmp_path)
    try:
        yield it
    finally:
        platform.granted("PATCH", "pools/default/", {"rebalance_mode": "off", "rebalance_bounds": {}})
        it.end()
        for uid in others:
            platform.granted("PATCH", f"claims/{uid}/", {"rebalance": True})


def test_an_idle_guarantee_is_lent_used_and_back_when_it_is_wanted(platform: Platform, claims: Claims) -> None:
    lender = claims.ask(core_request=GUARANTEE)["uid"]
    program, echo = claims.run(lender)
    claims.fill(45)
    taker = claims.ask(wait=2, core_request=BORROWED, **{"class": "best-effort"})
    assert taker["state"] == "queued", "no GPU has so much of its own"

    sleep_now(program.pid)

    def lent() -> bool:
        platform.granted("POST", "pools/default/rebalance/")
        return bool(claims.read(lender)["lent_core"] == GUARANTEE - 5)

    until(lent, what="the idle claim to lend")
    until(lambda: claims.read(taker["uid"])["state"] == "active", what="the waiting claim to be placed on it")
    taker = claims.read(taker["uid"])
    assert (taker["borrowed_core"], taker["assignments"][0]["gpu_uuid"]) == (
        BORROWED,
        claims.read(lender)["assignments"][0]["gpu_uuid"],
    )
    _, other = claims.run(taker["uid"])
    begun = other.gpu_time_ns()
    until(lambda: other.gpu_time_ns() - begun > 5e8, what="the borrower to use what is lent")

    assert wake(echo, program.pid, guarantee_percent=GUARANTEE).seconds < BACK_SECONDS
    until(lambda: claims.read(lender)["lent_core"] == 0, what="the books to follow")
    (back,) = platform.granted("GET", f"proposals/?claim={lender}&kind=give-back")["results"]
    assert (back["state"], back["policy"]) == ("applied", "waking")
