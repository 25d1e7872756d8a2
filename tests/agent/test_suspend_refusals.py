"""Claims whose memory the driver cannot move: refused in words before anything is stopped, and only while it is so."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import UNSET

from agent import wire
from tests.agent.control import Connection
from tests.agent.stage import BUILD, Stage, eventually
from tests.agent.suspensions import STEADY, begin, goes_on, refusal, wish
from tests.agent.test_reconcile import changed, put

# Gives a block of memory to others, or opens one; on SIGUSR1 closes it again.
SHARES = """
import ctypes, os, signal, sys, time
kind, path = sys.argv[1:]
cuda, device, context, block = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
class Handle(ctypes.Structure):
    _fields_ = [("text", ctypes.c_byte * 64)]
cuda.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
handle, closing = Handle(), []
signal.signal(signal.SIGUSR1, lambda *_: closing.append(True))
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
assert not cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(16 << 20))
if kind == "gives":
    assert not cuda.cuIpcGetMemHandle(ctypes.byref(handle), block)
    with open(path + ".new", "wb") as file:
        file.write(bytes(handle))
    os.rename(path + ".new", path)
else:
    handle = Handle.from_buffer_copy(open(path, "rb").read())
    assert not cuda.cuIpcOpenMemHandle_v2(ctypes.byref(block), handle, 1)
print("works", flush=True)
while True:
    assert not cuda.cuCtxSynchronize()
    if closing and kind == "opens":
        assert not cuda.cuIpcCloseMemHandle(block)
        closing.clear()
        print("closed", flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
async def link(stage: Stage) -> Connection:
    return await begin(stage)


async def share(stage: Stage, held: wire.Assignment, kind: str, path: Path) -> "subprocess.Popen[bytes]":
    """Start a program under the claim that gives memory, or opens what another gave."""
    program: subprocess.Popen[bytes] = stage.exec(held.claim_uid, sys.executable, "-c", SHARES, kind, str(path))
    assert program.stdout is not None
    assert await asyncio.to_thread(program.stdout.readline) == b"works\n"
    return program


def open_outside(stage: Stage, path: Path) -> "subprocess.Popen[bytes]":
    """Start a program of no claim that opens what another gave."""
    program = subprocess.Popen(
        [sys.executable, "-c", SHARES, "opens", str(path)],
        env=stage.environment(LD_LIBRARY_PATH=str(BUILD / "sim"), GPUCLOUD_SIM_NODE=str(stage.node_file)),
        stdout=subprocess.PIPE,
    )
    stage.programs.append(program)
    return program


async def refuses(stage: Stage, link: Connection, held: wire.Assignment) -> str:
    """Return the reason for which the claim is not suspended."""
    await wish(link, 2, held, suspended=True, generation=2)
    one = await refusal(link, held.uid, 2)
    assert one.state == "in_force"
    words = str(one.suspend_refused)
    # Of a call that the driver refused the reason names the call.
    assert "cuCheckpointProcess" not in words
    assert (slot := stage.slot(held)) is not None
    assert not slot.suspended
    return words


async def test_managed_memory_is_refused_before_anything_is_stopped(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    program = stage.exec(held.claim_uid, *STEADY, "managed")
    await eventually(lambda: stage.totals(held).processes == 1)
    await goes_on(stage, held)
    assert f"[{program.pid}] have managed memory" in await refuses(stage, link, held)
    await goes_on(stage, held)


async def test_a_client_of_mps_is_refused(stage: Stage) -> None:
    link = await begin(stage, GPUCLOUD_SIM_MPS="1")
    held = stage.assignment()
    await put(link, 1, held)
    program = stage.exec(held.claim_uid, *STEADY, GPUCLOUD_SIM_MPS="1")
    await eventually(lambda: stage.totals(held).processes == 1)
    await goes_on(stage, held)
    assert f"[{program.pid}] use their GPU through an MPS server" in await refuses(stage, link, held)
    await goes_on(stage, held)


async def test_imported_memory_is_refused_until_it_is_closed(stage: Stage, link: Connection, tmp_path: Path) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    maker = await share(stage, held, "gives", tmp_path / "handle")
    holder = await share(stage, held, "opens", tmp_path / "handle")
    words = await refuses(stage, link, held)
    assert f"[{holder.pid}] have memory of other processes open" in words
    holder.send_signal(10)
    assert holder.stdout is not None
    assert await asyncio.to_thread(holder.stdout.readline) == b"closed\n"
    wanted = await wish(link, 3, held, suspended=True, generation=3)
    await link.state(held.uid, "suspended", 3)
    await wish(link, 4, wanted, suspended=False, generation=4)
    assert (await link.state(held.uid, "in_force", 4)).suspend_refused is UNSET
    assert (maker.poll(), holder.poll()) == (None, None)


@pytest.mark.parametrize("where", ["another claim", "no claim"])
async def test_memory_that_a_process_elsewhere_may_have_open_is_refused(
    stage: Stage, link: Connection, tmp_path: Path, where: str
) -> None:
    held, other = stage.assignment(), stage.assignment()
    await put(link, 1, held, other)
    maker = await share(stage, held, "gives", tmp_path / "handle")
    if where == "another claim":
        holder = await share(stage, other, "opens", tmp_path / "handle")
    else:
        holder = open_outside(stage, tmp_path / "handle")
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"works\n"
    first = changed(held, suspended=True, generation=2)
    await link.send(wire.Desired(frame=2, assignments=[first, other]))
    words = str((await refusal(link, held.uid, 2)).suspend_refused)
    assert f"[{maker.pid}] have given memory" in words
    assert f"[{holder.pid}], outside of the claim" in words
    holder.kill()
    await asyncio.to_thread(holder.wait, 10)
    await link.send(wire.Desired(frame=3, assignments=[changed(first, generation=3), other]))
    await link.state(held.uid, "suspended", 3)
