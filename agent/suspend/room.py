"""The room on GPUs and in limits that suspended programs leave, and come back to."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agent.claims.claim import ClaimRuntime, gpu_key
from agent.host import processes
from agent.host.gpus import Listed, Nvml
from agent.suspend.records import Suspension

# The driver takes a little more for each process than what its account says (8 MiB, measured on an H100).
MARGIN_BYTES = 16 << 20
# Memory of a process that has just ended is free a moment later.
ROOM_SECONDS = 5.0
# As an allocation waits for lent memory (libvcuda/shim/memory/reclaim.c).
LENT_SECONDS = 10.0
LENT_BYTES_PER_SECOND = 4 << 30
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
    runtime: ClaimRuntime, targets: Mapping[str, str], record: Suspension, nvml: Nvml, in_nvml_thread: InThread
) -> str | None:
    """Return which of these GPUs has no room for what was saved, after a moment; None if all have.

    The driver would try, and a process whose restore runs out of memory can never be brought back (driver 580). What is
    lent there is asked back, and not lent again until `announce_return` ends that.
    """
    begin, asked = time.monotonic(), set[str]()
    # A claim that moves to another GPU has no slot of it yet.
    staying = [uid for uid, gpu in targets.items() if runtime.slots[uid].gpu == gpu_key(gpu)]
    while True:
        free = await in_nvml_thread(nvml.read_free)
        listed = await in_nvml_thread(nvml.processes)
        living = {one.pid for one in record.processes if processes.alive(one)}
        needs = _needs(targets, record, living, listed)
        short = [gpu for gpu, need in needs.items() if need > free.get(gpu, need)]
        lent = [uid for uid in staying if living and targets[uid] in needs and runtime.lends(uid)]
        # What was free before borrowers were told can be taken by now.
        if not living or (not short and asked.issuperset(lent)):
            runtime.announce_return(dict.fromkeys(lent, 0))
            return None
        asked = set(lent)
        runtime.announce_return({uid: needs[targets[uid]] if targets[uid] in short else 0 for uid in lent})
        patience = LENT_SECONDS + max(needs.values()) / LENT_BYTES_PER_SECOND if lent else ROOM_SECONDS
        if short and time.monotonic() - begin > patience:
            words = f"{needs[short[0]] // MIB} MiB must be free on {short[0]}, which has {free[short[0]] // MIB}"
            return f"{words}: other programs must give memory back first."
        await asyncio.sleep(LOOK_SECONDS)


async def end_return(runtime: ClaimRuntime, work: Awaitable[None]) -> None:
    """Do this, and let others borrow memory of the claim's GPUs again."""
    try:
        await work
    finally:
        runtime.announce_return({})


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
