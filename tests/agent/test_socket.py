"""agent.sock: admission, and answers to malformed requests."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent import wire
from agent.local_api import listener
from agent.local_wire import Refusal
from tests.agent.control import Connection
from tests.agent.stage import SECRET, Stage
from tests.agent.test_reconcile import changed, put


async def held_claim(stage: Stage, link: Connection) -> wire.Assignment:
    held = stage.assignment()
    await put(link, 1, held)
    return held


def line(**facts: object) -> bytes:
    return json.dumps(facts).encode() + b"\n"


async def test_the_secret_opens_the_claim(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    answer = await stage.ask(line(claim=held.claim_uid, secret=SECRET))
    assert answer["answer"] == "environment"
    assert answer["set"]["GPUCLOUD_CLAIM_DIR"] == str(stage.claim_dir(held))
    assert answer["set"]["CUDA_VISIBLE_DEVICES"] == held.gpu_uuid
    assert answer["set"]["NVIDIA_VISIBLE_DEVICES"] == held.gpu_uuid
    assert answer["set"]["GPUCLOUD_SIM_NODE"] == str(stage.node_file)
    assert answer["append"]["LD_PRELOAD"].endswith("libvcuda.so")
    assert answer["prepend"]["LD_LIBRARY_PATH"].endswith("sim")
    registered = json.loads((stage.run_dir / "processes.json").read_text())
    assert [pid for pid, _ in registered[held.claim_uid]] == [os.getpid()]


UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
BAD_REQUESTS = [
    (b"not json\n", "bad-request"),
    (b"[]\n", "bad-request"),
    (b"\n", "bad-request"),
    (b"\xff\xfe\n", "bad-request"),
    (b"{}\n", "bad-request"),
    (line(claim="../../etc", secret="x"), "bad-request"),
    (line(claim=5, secret="x"), "bad-request"),
    (line(claim=UID, secret="x", surprise=1), "bad-request"),
    (line(claim=UID, secret="x" * 600), "bad-request"),
    (line(claim=UID), "bad-request"),
    (line(claim=UID, secret="x"), "unknown-claim"),
    (b"x" * 100_000 + b"\n", "too-large"),
    (b"[" * 4000 + b"\n", "bad-request"),
]


async def test_a_bad_request_is_told_why_and_changes_nothing(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    for request_text, code in BAD_REQUESTS:
        answer = await stage.ask(request_text)
        assert (answer["answer"], answer["code"]) == ("refusal", code), request_text[:80]
        assert answer["detail"]
    assert not (stage.run_dir / "processes.json").exists()
    good = await stage.ask(line(claim=held.claim_uid, secret=SECRET))
    assert good["answer"] == "environment"


async def test_a_wrong_secret_opens_nothing(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    answer = await stage.ask(line(claim=held.claim_uid, secret="another"))
    assert answer["code"] == "wrong-secret"
    assert SECRET not in stage.log_text()
    assert not (stage.run_dir / "processes.json").exists()


async def test_a_released_claim_lets_nobody_in(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False)]))
    await link.state(held.uid, "released")
    answer = await stage.ask(line(claim=held.claim_uid, secret=SECRET))
    assert answer["code"] == "releasing"


async def test_a_silent_caller_does_not_keep_others_out(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    silent = [await asyncio.open_unix_connection(stage.run_dir / "agent.sock") for _ in range(20)]
    answer = await stage.ask(line(claim=held.claim_uid, secret=SECRET))
    assert answer["answer"] == "environment"
    for _, writer in silent:
        writer.close()


async def test_silent_callers_of_a_user_keep_that_user_out_and_nobody_else(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whose = {"uid": 61001}
    monkeypatch.setattr(listener, "_credentials", lambda writer: (os.getpid(), whose["uid"], 0))
    door = listener.Listener(run_dir / "agent.sock", lambda request, caller: Refusal(code="failed", detail="in"))
    await door.open()

    async def told(uid: int) -> str:
        whose["uid"] = uid
        reader, writer = await asyncio.open_unix_connection(run_dir / "agent.sock")
        writer.write(line(ask="status"))
        answer = json.loads(await reader.readline())
        writer.close()
        return str(answer["code"])

    silent = [await asyncio.open_unix_connection(run_dir / "agent.sock") for _ in range(listener.MAX_OF_A_USER)]
    assert [await told(61001), await told(61002)] == ["busy", "failed"]
    # Many users together may fill it; connections of root and of the agent's user are accepted all the same.
    monkeypatch.setattr(listener, "MAX_CALLERS", listener.MAX_OF_A_USER)
    assert [await told(uid) for uid in (61002, 0, os.getuid())] == ["busy", "failed", "failed"]
    for _, writer in silent:
        writer.close()
    await door.close()


async def test_status_tells_what_is_held(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)
    status = await asyncio.to_thread(stage.status)
    assert status["node"] == "sim-1"
    assert status["connected"] is True
    assert [(row["claim"], row["state"]) for row in status["assignments"]] == [(held.claim_uid, "in_force")]


# Asks as another user, waits for a line on its input, ends.
OTHER_USER = """
import os, socket, sys
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
peer.sendall(sys.argv[3].encode())
print(peer.makefile().readline(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")
async def test_the_usage_page_becomes_the_callers_and_no_second_users(stage: Stage, link: Connection) -> None:
    held = await held_claim(stage, link)

    def ask_as(uid: int) -> tuple[subprocess.Popen[str], dict[str, object]]:
        request = line(claim=held.claim_uid, secret=SECRET).decode()
        command = [sys.executable, "-c", OTHER_USER, str(stage.run_dir / "agent.sock"), str(uid), request]
        program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        return program, json.loads(program.stdout.readline())

    first, answer = await asyncio.to_thread(ask_as, 61001)
    assert answer["answer"] == "environment"
    facts = (stage.claim_dir(held) / "usage").stat()
    assert (facts.st_uid, facts.st_mode & 0o777) == (61001, 0o600)
    second, refusal = await asyncio.to_thread(ask_as, 61002)
    assert refusal["code"] == "wrong-user"
    for program in (first, second):
        await asyncio.to_thread(program.communicate, "end\n")
    third, answer = await asyncio.to_thread(ask_as, 61002)
    assert answer["answer"] == "environment"
    assert (stage.claim_dir(held) / "usage").stat().st_uid == 61002
    await asyncio.to_thread(third.communicate, "end\n")
