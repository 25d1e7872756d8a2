"""Six clients send requests while random parts are killed, the node's disk is full and clocks jump now and then.

Afterwards everything that was acknowledged is there, once; the recovery time is printed.
"""

import contextlib
import email.utils
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from deploy.embedded import postgres, valkey
from tests.agent.chaos import limit_files
from tests.e2e.clocks import Clocks
from tests.e2e.test_chaos import QUOTAS, insist
from tests.e2e.test_chaos_healing import PARTS
from tests.platform import ROOT, Json, Platform, until

# A minute of each run, on a platform of its own; test_chaos_healing.py kills every part once in `make test`.
pytestmark = [pytest.mark.serial, pytest.mark.long]

CLIENTS = 6
AGENT = "agent-sim-1"
# Between two faults: shorter than a part's recovery, so that faults often overlap.
PAUSE_SECONDS = 4.0
DISK_FULL_SECONDS = 2.0
# Before and behind the machine's clock, and back to it.
JUMPS = (600, -600, 0)
# Per client, so that all fit into the quota.
MOST_KEPT = 5
UNRELEASED = ("pending", "queued", "assigned", "active", "suspended", "releasing", "failed")
# On an idle machine it is under ten; no test judges that on a busy one.
HEALED_SECONDS = 60.0


class Over(Exception):
    """The end came while a client waited for quota."""


class Client(threading.Thread):
    """A client that creates, resizes and releases claims.

    It repeats each request until it is answered, and records acknowledgements.
    """

    def __init__(self, platform: Platform, tenant: str, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"client-{number}")
        self._platform, self._tenant, self._ended = platform, tenant, stop
        self._random = random.Random(number)  # noqa: S311
        # The last acknowledgement of each claim; released ones too.
        self.known: dict[str, Json] = {}
        self.counts = {"made": 0, "resized": 0, "released": 0}
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run until the end."""
        try:
            for number in count():
                if self._ended.is_set():
                    return
                self._live(number)
        except Over:
            return
        except BaseException as error:
            self.failure = error
            raise

    def _live(self, number: int) -> None:
        body = {"tenant": self._tenant, "name": f"{self.name}-{number}", "core_request": 5, "memory_mib": 512}
        claim = self._asked("POST", "claims/", body)
        self.counts["made"] += 1
        for _ in range(self._random.randrange(1, 4)):
            if self._ended.is_set():
                return
            claim = self._asked("PATCH", f"claims/{claim['uid']}/", {"core_limit": self._random.randrange(5, 101)})
            self.counts["resized"] += 1
        kept = [uid for uid, one in self.known.items() if not one.get("deleted")]
        if self._random.random() < 0.9 or len(kept) > MOST_KEPT:
            self._asked("DELETE", f"claims/{kept[0]}/")
            self.counts["released"] += 1

    def _asked(self, method: str, path: str, body: Json | None = None) -> Json:
        answer = insist(self._platform, method, path, body)
        while answer.status == 409 and answer.body["type"] == "/problems/quota-exceeded" and not self._ended.is_set():
            # A claim is charged until the agent, which may be down, has confirmed its release.
            time.sleep(0.5)
            answer = insist(self._platform, method, path, body)
        if answer.status == 409 and self._ended.is_set():
            raise Over
        assert 200 <= answer.status < 300, answer
        found: Json = answer.body
        if method == "DELETE":
            self.known[path.split("/")[1]]["deleted"] = True
        else:
            self.known[found["uid"]] = found
        return found


@pytest.fixture(scope="module")
def clocks() -> Iterator[Clocks]:
    with tempfile.TemporaryDirectory(prefix="gpucloud-clocks-") as directory:
        yield Clocks(Path(directory))


@pytest.fixture(scope="module")
def platform(clocks: Clocks) -> Iterator[Platform]:
    """Start a platform with adjustable clocks, for this module alone."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-platform-") as directory,
        Platform(Path(directory) / "demo", environment=clocks.environment) as it,
    ):
        yield it


@pytest.fixture
def clients(platform: Platform) -> Iterator[list[Client]]:
    tenant = platform.new_tenant(f"kills-{uuid.uuid4().hex[:8]}")
    stop = threading.Event()
    made = [Client(platform, tenant, number, stop) for number in range(CLIENTS)]
    yield made
    stop.set()
    for client in made:
        client.join()


def harm(platform: Platform, clocks: Clocks, dice: random.Random) -> str:
    """Kill a random part, fill the disk of the agent for a while, or set a clock; return the fault."""
    what = dice.choice([*PARTS, "disk-full", "clock-node", "clock-server"])
    if what == "clock-node":
        clocks.jump("node", dice.choice(JUMPS))
    elif what == "clock-server":
        clocks.jump("server", dice.choice(JUMPS))
    elif what == "disk-full":
        pid = platform.pid(AGENT)
        with contextlib.suppress(ProcessLookupError):
            limit_files(pid, 0)
            time.sleep(DISK_FULL_SECONDS)
            limit_files(pid, resource.RLIM_INFINITY)
    else:
        with contextlib.suppress(ProcessLookupError):
            platform.kill(what)
    return what


def is_settled(platform: Platform, clients: list[Client]) -> bool:
    """Return True once no claim but acknowledged ones is left, and each is observed as acknowledged last."""
    known = {uid: wanted for client in clients for uid, wanted in client.known.items()}
    live = {uid: wanted for uid, wanted in known.items() if not wanted.get("deleted")}
    # Reading thousands of released claims would take longer than recovery.
    tenant = clients[0]._tenant
    left = {
        claim["uid"]: claim
        for state in UNRELEASED
        for claim in platform.granted("GET", f"claims/?tenant={tenant}&state={state}&limit=200")["results"]
    }
    assert left.keys() <= known.keys(), "a claim was made twice"
    if left.keys() != live.keys():
        return False
    for uid, wanted in live.items():
        assert left[uid]["generation"] >= wanted["generation"]
        assert left[uid]["core_limit"] == wanted["core_limit"]
        if left[uid]["observed_generation"] != left[uid]["generation"] or left[uid]["state"] != "active":
            return False
    return True


def check_released(platform: Platform, clients: list[Client]) -> None:
    """Read every claim whose release was acknowledged; raise AssertionError if one is not released."""
    for uid in [uid for client in clients for uid, wanted in client.known.items() if wanted.get("deleted")]:
        assert platform.granted("GET", f"claims/{uid}/")["state"] == "released"


def check_ledger(platform: Platform, *, database_url: str = "") -> None:
    """Run `manage.py check_ledger`; raise AssertionError with the numbers that differ."""
    services = {"DATABASE_URL": database_url or postgres.url(platform.state), "REDIS_URL": valkey.url(platform.state)}
    done = subprocess.run(
        [sys.executable, "manage.py", "check_ledger"],
        cwd=ROOT,
        env=os.environ | services,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_clocks_of_the_platform_can_be_set(platform: Platform, clocks: Clocks) -> None:
    def ahead() -> float:
        date = email.utils.parsedate_to_datetime(platform.call("GET", "me/").headers["date"])
        return date.timestamp() - time.time()

    for seconds in JUMPS:
        clocks.jump("server", seconds)
        until(lambda by=seconds: abs(ahead() - by) < 5, seconds=10, what=f"a clock that is {seconds} s ahead")


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(20.0, marks=pytest.mark.timeout(300)),
        pytest.param(600.0, marks=pytest.mark.timeout(1500)),
    ],
)
def test_what_was_acknowledged_is_there_after_random_kills(
    platform: Platform, clocks: Clocks, clients: list[Client], seconds: float
) -> None:
    seed = random.randrange(1 << 32)  # noqa: S311
    print("seed", seed)  # noqa: T201
    dice, harms = random.Random(seed), list[str]()  # noqa: S311
    for client in clients:
        client.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        harms.append(harm(platform, clocks, dice))
        time.sleep(PAUSE_SECONDS * dice.uniform(0.5, 1.5))
    clients[0]._ended.set()
    for client in clients:
        client.join()
        assert client.failure is None
    print(dict(Counter(harms)))  # noqa: T201
    begun = time.monotonic()
    until(lambda: is_settled(platform, clients), seconds=HEALED_SECONDS, what="all to be as acknowledged")
    asked = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
    print(f"{len(harms)} harms, {asked}, healed in {time.monotonic() - begun:.1f} s")  # noqa: T201
    check_released(platform, clients)
    live = [claim for client in clients for claim in client.known.values() if not claim.get("deleted")]
    assert platform.used(clients[0]._tenant) == {
        name: sum(one[field] for one in live) for name, field in QUOTAS.items()
    }
    check_ledger(platform)
    for gpu in platform.granted("GET", "gpus/?limit=200")["results"]:
        assert gpu["core_used"] <= 100
        assert gpu["memory_used_mib"] <= gpu["memory_mib"]
