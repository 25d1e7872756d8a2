"""A claim is suspended while its program works, its room is used by another, and the program goes on with its data."""

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claims import Claims
from tests.e2e.test_chaos import insist, wait_for
from tests.platform import Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

# Keeps a hash chain in GPU memory: each link is read from there, hashed and written back. Another thread polls a
# stream, as those of JAX do: the driver ends a program that does so while it is suspended, unless libvcuda holds it.
PROGRAM = """
import ctypes, hashlib, json, signal, sys, threading, time
size = int(sys.argv[1]) << 20
cuda = ctypes.CDLL("libcuda.so.1")
device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
def check(error):
    if error:
        print(json.dumps({"error": error}), flush=True)
        sys.exit(1)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
check(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(size)))
def poll():
    check(cuda.cuCtxSetCurrent(context))
    while not over:
        check(cuda.cuStreamQuery(None))
        time.sleep(0.001)
threading.Thread(target=poll, daemon=True).start()
link, rounds = ctypes.create_string_buffer(b"seed", 32), 0
check(cuda.cuMemcpyHtoD_v2(block, link, ctypes.c_size_t(32)))
while not over:
    check(cuda.cuMemcpyDtoH_v2(link, block, ctypes.c_size_t(32)))
    ctypes.memmove(link, hashlib.sha256(link.raw).digest(), 32)
    check(cuda.cuMemcpyHtoD_v2(block, link, ctypes.c_size_t(32)))
    rounds += 1
    if rounds % 20 == 1:
        print(json.dumps({"rounds": rounds}), flush=True)
    time.sleep(0.01)
check(cuda.cuMemcpyDtoH_v2(link, block, ctypes.c_size_t(32)))
print(json.dumps({"rounds": rounds, "link": link.raw.hex()}), flush=True)
"""


def chain(rounds: int) -> str:
    """Return the link after so many rounds."""
    link = b"seed".ljust(32, b"\0")
    for _ in range(rounds):
        link = hashlib.sha256(link).digest()
    return link.hex()


class Chain:
    """The program under a claim."""

    def __init__(self, claims: Claims, uid: str, log: Path, mib: int = 64) -> None:
        self._log = log
        self.process: subprocess.Popen[bytes] = claims.platform.run(
            uid, sys.executable, "-c", PROGRAM, str(mib), log=log
        )
        claims.programs.append(self.process)

    def said(self) -> list[dict[str, object]]:
        """Return its complete lines."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def rounds(self) -> int:
        """Return the rounds of its last line."""
        said = self.said()
        return int(str(said[-1].get("rounds", 0))) if said else 0

    def end(self) -> dict[str, object]:
        """End it, and return its last line."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return self.said()[-1]


@pytest.fixture
def claims(platform: Platform, tmp_path: Path) -> Iterator[Claims]:
    made = Claims(platform, tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_program_goes_on_with_its_data_after_its_gpu_was_used_by_another(claims: Claims, tmp_path: Path) -> None:
    platform = claims.platform
    claim = claims.ask(core_request=100)
    uid, gpu = claim["uid"], claim["assignments"][0]["gpu_uuid"]
    program = Chain(claims, uid, tmp_path / "chain.log")
    until(lambda: program.rounds() > 20, what="the program to work")

    # Suspended: its GPU is free, in the ledger and on the card.
    answer = platform.call("POST", f"claims/{uid}/suspend/?wait=60")
    assert (answer.status, answer.body["state"]) == (200, "suspended"), answer.body
    assert 64 <= answer.body["host_memory_mib"] <= 256
    assert platform.used(claims.tenant)["core_percent"] == 0
    assert platform.gpu(gpu)["core_free"] == 100
    stood = program.rounds()

    # Its room is given to another; all other GPUs are full, so that it is the only one.
    claims.fill(100)
    others = [one for one in claims.made if one != uid]

    # It waits in the queue for a GPU of its node.
    platform.granted("POST", f"claims/{uid}/resume/")
    until(lambda: claims.read(uid)["reasons"], what="a round to consider it")
    waiting = claims.read(uid)
    assert (waiting["state"], waiting["reasons"][0]["code"]) == ("resuming", "gpu-core")
    assert program.rounds() == stood
    assert program.process.poll() is None

    # Another claim of the node ends; the program goes on there, with what it had in GPU memory.
    where = release_beside(claims, others, node=claim["assignments"][0]["node"], but=gpu)
    until(lambda: claims.read(uid)["state"] == "active", what="the claim to be active again")
    until(lambda: program.rounds() > stood + 40, what="the program to go on")
    last = program.end()
    assert last["link"] == chain(int(str(last["rounds"])))
    document = claims.read(uid)
    assert document["assignments"][0]["gpu_uuid"] == where
    assert platform.gpu(gpu)["core_free"] == 0
    assert document["host_memory_mib"] == 0


def release_beside(claims: Claims, others: list[str], *, node: str, but: str) -> str:
    """End a claim on another GPU of the node; return that GPU."""
    for uid in others:
        for place in claims.read(uid)["assignments"]:
            if place["node"] == node and place["gpu_uuid"] != but:
                claims.platform.granted("DELETE", f"claims/{uid}/?wait=60")
                return str(place["gpu_uuid"])
    raise AssertionError("No other claim is on the node.")


# tests/e2e/test_suspension_kills.py kills each part once per commit, under a program that checks its data, too.
@pytest.mark.parametrize(
    "part", [*(pytest.param(part, marks=pytest.mark.long) for part in ("server", "scheduler", "worker")), "agent"]
)
def test_a_part_that_is_killed_meanwhile_loses_nothing(claims: Claims, tmp_path: Path, part: str) -> None:
    """Killed right after each order: the claim is suspended and resumed all the same, and the program has its data."""
    platform = claims.platform
    claim = claims.ask(core_request=30)
    uid, place = claim["uid"], claim["assignments"][0]
    name = f"agent-{place['node']}" if part == "agent" else part
    program = Chain(claims, uid, tmp_path / "chain.log")
    until(lambda: program.rounds() > 20, what="the program to work")
    for _ in range(2):
        insist(platform, "POST", f"claims/{uid}/suspend/")
        platform.kill(name)
        wait_for(platform, uid, "suspended")
        assert platform.used(claims.tenant)["core_percent"] == 0
        stood = program.rounds()
        insist(platform, "POST", f"claims/{uid}/resume/")
        platform.kill(name)
        document = wait_for(platform, uid, "active")
        assert (document["host_memory_mib"], document["assignments"][0]["gpu_uuid"]) == (0, place["gpu_uuid"])
        until(lambda stood=stood: program.rounds() > stood + 20, what="the program to go on")
    last = program.end()
    assert last["link"] == chain(int(str(last["rounds"])))
    assert platform.used(claims.tenant) == {"core_percent": 30, "memory_mib": 256}
    node = platform.granted("GET", f"nodes/{place['node']}/")
    assert node["host_memory_used_mib"] == 0
