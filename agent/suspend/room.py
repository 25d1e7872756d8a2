"""The room on GPUs and in limits that suspended programs leave, and come back to."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.gpus import Listed, Nvml
from agent.suspend.records import Suspension

# The driver takes a little more for each process than what its account says (8 MiB, measured on an H100).
MARGIN_BYTES = 16 << 20
# Memory of a process that has just ended is free a moment later.
ROOM_SECONDS = 5.0
LOOK_SECONDS = 0.5
MIB = 1 << 20

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def find_lack(runtime: ClaimRuntime, record: Suspension) -> str | None:
    """Return which limit is too low for what was saved; None if all have room."""
    for uid, slot in runtime.slots.items():
        saved = record.saved.get(uid, 0)
        if saved > slot.memory_bytes and any(processes.alive(one) for one in record.processes):
            need = -(-saved // MIB)
            return f"{need} MiB were saved from GPU-{slot.gpu}: raise memory_mib to {need} or more, then resume."
    return None


async def find_no_room(
    targets: Mapping[str, str], record: Suspension, nvml: Nvml, in_nvml_thread: InThread
) -> str | None:
    """Return which of these GPUs has no room for what was saved, after a moment; None if all have.

    The driver would try, and a process whose restore runs out of memory can never be brought back (driver 580).
    """
    end = time.monotonic() + ROOM_SECONDS
    while True:
        free = await in_nvml_thread(nvml.read_free)
        listed = await in_nvml_thread(nvml.processes)
        living = {one.pid for one in record.processes if processes.alive(one)}
        short = [
            f"{need // MIB} MiB must be free on {gpu}, which has {free[gpu] // MIB}"
            for gpu, need in _needs(targets, record, living, listed).items()
            if need > free.get(gpu, need)
        ]
        if not living or not short:
            return None
        if time.monotonic() > end:
            return f"{short[0]}: other programs must give memory back first."
        await asyncio.sleep(LOOK_SECONDS)


async def find_left(runtime: ClaimRuntime, record: Suspension, nvml: Nvml, in_nvml_thread: InThread) -> str | None:
    """Return which of the claim's processes still use a GPU; None if none does."""
    runtime.refresh()
    if runtime.members.attached() - record.processes:
        return "Its programs began others meanwhile: try again."
    mine = {one.pid for one in runtime.members.living()}
    listed = await in_nvml_thread(nvml.processes)
    left = sorted({one.pid for one in listed if one.pid in mine and one.memory_bytes})
    return f"By NVML, process(es) {left} still have memory on a GPU." if left else None


def _needs(targets: Mapping[str, str], record: Suspension, living: set[int], listed: list[Listed]) -> dict[str, int]:
    """Return the bytes that must still be free on each GPU, by NVML's name; those of an interrupted resumption are."""
    needs = {}
    for uid, gpu in targets.items():
        back = sum(one.memory_bytes or 0 for one in listed if one.gpu_uuid == gpu and one.pid in living)
        if saved := record.saved.get(uid, 0):
            needs[gpu] = saved + MARGIN_BYTES * len(living) - back
    return needs
