"""Memory that the driver cannot move: the obstacles to a suspension that are known before anything is stopped.

libvcuda counts managed, imported and exported memory in the usage page; NVML lists the clients of MPS. Read it after
every process has seen that its claim is to be suspended: further imports wait from then on.
"""

from collections.abc import Iterable
from enum import IntFlag

from agent.claims.claim import ClaimRuntime


class Unmovable(IntFlag):
    """VCUDA_UNMOVABLE_* of libvcuda's pages."""

    MANAGED = 1
    IMPORTED = 2
    EXPORTED = 4


def find_unmovable(
    runtime: ClaimRuntime, others: Iterable[ClaimRuntime], *, on_gpus: set[int], mps_clients: set[int]
) -> str | None:
    """Return what the driver cannot move of the claim's processes, in words; None if it can move all.

    `on_gpus`: the pids of all processes on the machine's GPUs. Seen on an H100 with driver 580: managed memory and MPS
    are refused by the driver; a process with imported memory can be checkpointed and never be restored; exported memory
    comes back as a copy, and those who imported it keep the old one.
    """
    living = {one.pid for one in runtime.members.living()}
    if mine := sorted(living & mps_clients):
        return f"Process(es) {mine} use their GPU through an MPS server: start them without MPS."
    if mine := _find(runtime, Unmovable.MANAGED):
        return f"Process(es) {mine} have managed memory (cudaMallocManaged): it must be freed first."
    if mine := _find(runtime, Unmovable.IMPORTED):
        return (
            f"Process(es) {mine} have memory of other processes open (CUDA IPC, as NCCL uses it between processes): "
            "the driver could not bring them back. It must be closed first."
        )
    if not (mine := _find(runtime, Unmovable.EXPORTED)):
        return None
    # Of the claim's own processes none has it open: that was asked before.
    outside, claimed = set[int](), set(living)
    for other in others:
        outside.update(_find(other, Unmovable.IMPORTED))
        claimed.update(one.pid for one in other.members.living())
    outside |= on_gpus - claimed
    if not outside:
        return None
    return (
        f"Process(es) {mine} have given memory to other processes (CUDA IPC), and {sorted(outside)}, outside of the "
        "claim, may have it open: they must close it, or end, first."
    )


def _find(runtime: ClaimRuntime, which: Unmovable) -> list[int]:
    return sorted(process.pid for process, bits in runtime.unmovable.items() if bits & which)
