"""A claim in a pool with the back end mps, the whole way: REST, server, agent, control daemon, server, program."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host import processes
from agent.host.mps import find_running, find_servers
from agent.host.mps_places import Places, TrustGroup, places
from benchmarks.echo import Echo
from tests.claims import Claims
from tests.platform import Json, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


class MpsClaims(Claims):
    """Claims, and the places of their control daemons."""

    def __init__(self, platform: Platform, directory: Path) -> None:
        super().__init__(platform, directory)
        self.places: list[Places] = []

    def place_of(self, claim: Json) -> Places:
        """Return the place of the daemon of the claim's group."""
        run_dir = Path(self.platform.granted("GET", f"claims/{claim['uid']}/env/")["agent_socket"]).parent
        self.places.append(places(run_dir / "mps", TrustGroup(claim["assignments"][0]["gpu_uuid"], self.tenant)))
        return self.places[-1]

    def end(self) -> None:
        """End everything; a daemon that its agent has not ended yet would outlive the platform."""
        super().end()
        until(lambda: not any(place.root.exists() for place in self.places), seconds=30, what="the daemons to end")


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[MpsClaims]:
    it = MpsClaims(platform, tmp_path)
    assert platform.granted("PATCH", "pools/default/", {"backend": "mps"})["backend"] == "mps"
    try:
        yield it
    finally:
        it.end()
        platform.granted("PATCH", "pools/default/", {"backend": "turns"})


def share(echo: Echo, seconds: float = 1.5) -> float:
    """Return the percent of the GPU that the claim's page is charged over this time."""
    before, begun = echo.gpu_time_ns(), time.monotonic()
    time.sleep(seconds)
    return (echo.gpu_time_ns() - before) / (time.monotonic() - begun) / 1e7


def test_a_claim_lives_under_mps_and_is_told_what_falls(platform: Platform, claims: MpsClaims) -> None:
    claim = claims.ask(core_request=30, core_limit=30)
    uid, gpu = claim["uid"], claim["assignments"][0]["gpu_uuid"]
    assert platform.gpu(gpu)["backend"] == "mps"
    place = claims.place_of(claim)
    program, echo = claims.run(uid)
    daemon = find_running(place)
    assert daemon is not None
    assert find_servers(daemon)
    assert 15 < share(echo) < 33
    # 1. Resized while it runs: below the part that it started with.
    platform.granted("PATCH", f"claims/{uid}/?wait=30", {"core_request": 10, "core_limit": 10})
    assert 5 < share(echo) < 14
    # 2. No suspension, and the refusal comes before the agent is asked.
    refused = platform.call("POST", f"claims/{uid}/suspend/", {})
    assert (refused.status, "back end mps" in str(refused.body)) == (409, True)
    # 3. The agent is killed: the program goes on, and the next agent adopts the daemon.
    platform.kill("agent-sim-1")
    platform.pid("agent-sim-1")
    assert share(echo) > 5
    until(lambda: platform.granted("GET", "nodes/sim-1/")["state"] == "ready", seconds=60, what="the agent to be back")
    assert (find_running(place), program.poll()) == (daemon, None)
    # 4. The control daemon is killed: the program falls, the claim is named, and another program can start.
    processes.send(daemon, signal.SIGKILL)
    assert program.wait(30) != 0
    until(lambda: find_running(place) not in (None, daemon), seconds=30, what="the next control daemon")
    events = until(
        lambda: list(platform.granted("GET", "audit/?action=agent.mps-daemon-ended")["results"]),
        seconds=30,
        what="the event",
    )
    assert uid in json.dumps(events)
    again, echo = claims.run(uid)
    assert again.poll() is None
    # 5. Released: nothing is left.
    platform.granted("DELETE", f"claims/{uid}/?wait=60")
    until(lambda: not place.root.exists(), seconds=30, what="the daemon to end")
