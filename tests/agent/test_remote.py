"""Remote shares of a real agent: tickets, streams that outlive connections, ends of either side, floods, the rate.

The remoting server is a double (`remoting_double`), started under a claim, in its own network, as the tenant's user.
"""

import asyncio
import hashlib
import os
import secrets
import signal
import socket
import ssl
import time
from pathlib import Path

import msgspec
import pytest

from agent.host import processes
from gpucloud_cli.remote_client import new_key
from tests.agent.jobs import IS_ROOT, ME
from tests.agent.remoting import SECONDS, Program, Remote, Way, remote
from tests.agent.stage import eventually

__all__ = ["remote"]

MIB = 1 << 20
INVERTED = bytes(255 - byte for byte in range(256))


async def asked(program: Program, line: str) -> str:
    return await asyncio.to_thread(program.ask, line)


async def test_a_program_reaches_a_server_under_its_claim(remote: Remote) -> None:
    """It has the claim's environment with libvcuda, the tenant's user, and no network but a loopback."""
    share = await remote.open()
    program = Program(share.port)
    assert await asked(program, "echo hello") == "hello"
    assert await asked(program, "env GPUCLOUD_CLAIM_DIR") == str(remote.stage.claim_dir(remote.claim))
    assert "libvcuda.so" in await asked(program, "env LD_PRELOAD")
    assert await asked(program, "uid") == str(ME)
    assert await asked(program, "routes") == "0"
    program.close()


async def test_bytes_arrive_as_they_were_sent(remote: Remote) -> None:
    share = await remote.open()
    program = Program(share.port)
    data = os.urandom(1 << 20) * 40

    def move() -> str:
        program.socket.sendall(f"take {len(data)}\n".encode() + data)
        return program.lines.readline().decode().strip()

    assert await asyncio.to_thread(move) == hashlib.sha256(data).hexdigest()
    program.socket.sendall(b"blob 41943040\n")
    assert len(await asyncio.to_thread(program.lines.read, 41943040)) == 41943040
    totals = share.totals
    assert totals.sent_bytes > len(data)
    assert totals.received_bytes > 41943040
    program.close()


async def test_both_directions_carry_at_once(remote: Remote) -> None:
    """Different bytes go each way at the same time, in pieces of many sizes."""
    share = await remote.open()
    program = Program(share.port)
    there = os.urandom(48 << 20)

    def write() -> None:
        program.socket.sendall(f"mirror {len(there)}\n".encode())
        at, step = 0, 1
        while at < len(there):
            program.socket.sendall(there[at : at + step])
            at, step = at + step, step * 7 % 300_007 + 1

    writing = asyncio.create_task(asyncio.to_thread(write))
    back = await asyncio.to_thread(program.lines.read, len(there))
    await writing
    assert hashlib.sha256(back).hexdigest() == hashlib.sha256(there.translate(INVERTED)).hexdigest()
    program.close()


async def test_a_ticket_opens_one_session(remote: Remote) -> None:
    place, key = await remote.ticket()
    first = Program(remote.share(place, key).port)
    assert await asked(first, "echo 1") == "1"
    again = Program(remote.share(place, key).port)
    assert await asked(again, "echo 2") == ""
    assert "The ticket is not valid here" in remote.said[0]
    first.close()
    again.close()


@pytest.mark.parametrize("wrong", ["ticket", "key", "claim", "late"])
async def test_a_wrong_ticket_opens_nothing(remote: Remote, wrong: str) -> None:
    """Neither an unknown one, nor one of another client, of another claim, or one that is too old."""
    other = remote.stage.assignment(gpu=1)
    await remote.send(remote.claim, other)
    await remote.link.state(other.uid, "in_force")
    place, key = await remote.ticket(seconds=1 if wrong == "late" else 60)
    used_key = new_key()[0] if wrong == "key" else key
    if wrong == "late":
        await asyncio.sleep(1.2)
    changes = {"ticket": {"ticket": secrets.token_urlsafe(32)}, "claim": {"claim": other.claim_uid}}
    program = Program(remote.share(place | changes.get(wrong, {}), used_key).port)
    assert await asked(program, "echo 1") == ""
    assert "The ticket is not valid here" in remote.said[0]
    program.close()
    if wrong == "key":
        # Whoever does not have the key has not used it.
        mine = Program(remote.share(place, key).port)
        assert await asked(mine, "echo 2") == "2"
        mine.close()


async def test_another_machines_certificate_is_refused(remote: Remote) -> None:
    place, key = await remote.ticket()
    program = Program(remote.share(place | {"fingerprint": "0" * 64}, key).port)
    assert await asked(program, "echo 1") == ""
    assert "Another machine answers" in remote.said[0]
    program.close()


async def test_a_stream_goes_on_after_its_connection_was_lost(remote: Remote) -> None:
    """No byte is lost or sent twice, though the connection breaks again and again."""
    way = await Way.open(remote.endpoint.port)
    place, key = await remote.ticket()
    share = remote.share(place | {"port": way.port}, key)
    program = Program(share.port)
    before = await asked(program, "pid")
    data = os.urandom(1 << 20) * 64

    def move() -> str:
        program.socket.sendall(f"take {len(data)}\n".encode() + data)
        return program.lines.readline().decode().strip()

    moving = asyncio.create_task(asyncio.to_thread(move))
    for _ in range(5):
        await asyncio.sleep(0.1)
        way.cut()
    assert await moving == hashlib.sha256(data).hexdigest()
    way.cut()
    assert await asked(program, "pid") == before
    assert way.cuts > 1
    program.close()
    way.close()


async def test_a_client_that_is_gone_frees_all_within_ten_seconds(remote: Remote) -> None:
    way = await Way.open(remote.endpoint.port)
    place, key = await remote.ticket()
    program = Program(remote.share(place | {"port": way.port}, key).port)
    pid = int(await asked(program, "pid"))
    assert processes.find(pid) is not None
    way.refuses = True
    way.cut()
    started = time.monotonic()
    await eventually(lambda: processes.find(pid) is None, seconds=15)
    assert time.monotonic() - started < 10
    # The program is told, too.
    assert await asked(program, "echo 1") == ""
    assert "cannot be reached" in remote.said[0]
    program.close()
    way.close()


async def test_a_silent_client_is_gone(remote: Remote) -> None:
    """A machine that is switched off closes no connection."""
    way = await Way.open(remote.endpoint.port)
    place, key = await remote.ticket()
    program = Program(remote.share(place | {"port": way.port}, key).port)
    pid = int(await asked(program, "pid"))
    way.is_silent = way.refuses = True
    started = time.monotonic()
    await eventually(lambda: processes.find(pid) is None, seconds=15)
    assert time.monotonic() - started < 10.5
    program.close()
    way.close()


async def test_a_program_that_ends_ends_its_server_at_once(remote: Remote) -> None:
    share = await remote.open()
    program = Program(share.port)
    pid = int(await asked(program, "pid"))
    program.close()
    await eventually(lambda: processes.find(pid) is None, seconds=3)


async def test_a_killed_server_ends_the_program_with_a_reason(remote: Remote) -> None:
    share = await remote.open()
    program = Program(share.port)
    pid = int(await asked(program, "pid"))
    found = processes.find_with_parent(pid)
    assert found is not None
    os.kill(found[1], signal.SIGKILL)
    assert await asyncio.to_thread(program.lines.read) == b""
    await eventually(lambda: remote.said, seconds=5)
    assert "the remoting server was ended by signal 9" in remote.said[0]
    # The next one is started anew.
    again = Program(share.port)
    assert await asked(again, "echo 1") == "1"
    program.close()
    again.close()


async def test_a_released_claim_ends_its_programs(remote: Remote) -> None:
    share = await remote.open()
    program = Program(share.port)
    pid = int(await asked(program, "pid"))
    await remote.send()
    assert await asyncio.to_thread(program.lines.read) == b""
    await eventually(lambda: processes.find(pid) is None, seconds=10)
    await eventually(lambda: remote.said, seconds=5)
    assert "the claim has ended" in remote.said[0]
    again = Program(share.port)
    assert await asked(again, "echo 1") == ""
    program.close()
    again.close()


async def test_clients_that_are_not_allowed_any_more_are_ended_and_told_why(remote: Remote) -> None:
    """A pool, a tenant or an owner may change its mind, also back; then a new ticket is needed."""
    share = await remote.open()
    program = Program(share.port)
    pid = int(await asked(program, "pid"))
    await remote.send(msgspec.structs.replace(remote.claim, remote_refused="the pool does not allow it any more"))
    started = time.monotonic()
    assert await asyncio.to_thread(program.lines.read) == b""
    await eventually(lambda: processes.find(pid) is None, seconds=10)
    assert time.monotonic() - started < 10
    await eventually(lambda: remote.said, seconds=5)
    assert "the pool does not allow it any more" in remote.said[0]
    await remote.send(remote.claim)
    again = Program(share.port)
    assert await asked(again, "echo 1") == ""
    new = Program((await remote.open()).port)
    assert await asked(new, "echo 2") == "2"
    for one in (program, again, new):
        one.close()


async def test_a_ticket_for_a_claim_that_may_not_be_used_is_good_for_a_moment_only(remote: Remote) -> None:
    """It may have been given before the change, and a ticket may overtake the change that allows it."""
    await remote.send(msgspec.structs.replace(remote.claim, remote_refused="never"))
    share = await remote.open()
    program = Program(share.port)
    started = time.monotonic()
    assert await asyncio.to_thread(program.lines.read) == b""
    assert time.monotonic() - started < 10
    again = Program(share.port)
    assert await asked(again, "echo 1") == ""
    program.close()
    again.close()


async def test_the_rate_of_a_claim_is_bounded(remote: Remote) -> None:
    share = await remote.open(bytes_per_second=8 * MIB)
    program = Program(share.port)
    assert await asked(program, "echo 1") == "1"
    started = time.monotonic()
    program.socket.sendall(b"blob 16777216\n")
    assert len(await asyncio.to_thread(program.lines.read, 16777216)) == 16777216
    assert 1.5 < time.monotonic() - started < 4
    program.close()


async def test_a_claim_has_a_bounded_number_of_connections(remote: Remote) -> None:
    share = await remote.open()
    programs = [Program(share.port)]
    assert await asked(programs[0], "echo 1") == "1"
    programs += [Program(share.port) for _ in range(80)]
    answers = await asyncio.gather(*(asked(one, "echo 1") for one in programs[1:]), return_exceptions=True)
    served = [one for one in answers if one == "1"]
    assert 1 <= len(served) <= 63
    assert await asked(programs[0], "echo 2") == "2"
    for one in programs:
        one.close()


async def test_strangers_that_say_nothing_keep_nobody_out_for_long(remote: Remote) -> None:
    """The endpoint waits for few of one address, and not for long; a client comes in afterwards."""
    strangers = [socket.create_connection(("127.0.0.1", remote.endpoint.port)) for _ in range(100)]
    await asyncio.sleep(0.5)
    open_ones = [one for one in strangers if not _is_closed(one)]
    assert len(open_ones) <= 16
    share = await remote.open()
    await asyncio.sleep(11)
    program = Program(share.port)
    assert await asked(program, "echo 1") == "1"
    for one in strangers:
        one.close()
    program.close()


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b'{"v":2}\n', b"x" * 5000, b"[" * 1900 + b"\n"])
async def test_what_is_no_opening_is_refused(remote: Remote, line: bytes) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def send() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", remote.endpoint.port), timeout=SECONDS) as made,
            context.wrap_socket(made) as stream,
        ):
            stream.sendall(line)
            stream.shutdown(socket.SHUT_WR)
            try:
                return stream.recv(1000)
            except OSError:
                return b""

    answer = await asyncio.to_thread(send)
    assert b"session" not in answer
    share = await remote.open()
    program = Program(share.port)
    assert await asked(program, "echo 1") == "1"
    program.close()


@pytest.mark.skipif(not IS_ROOT, reason="only root's agent has other users")
async def test_the_endpoint_has_no_rights(remote: Remote) -> None:
    assert 65534 in users_of(b"agent.remote.endpoint")


def users_of(word: bytes) -> set[int]:
    """Return the users of the processes with this word in their command line."""
    found = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return {entry.stat().st_uid for entry in found if word in _read(entry / "cmdline")}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
