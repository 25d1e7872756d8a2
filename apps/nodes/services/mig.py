"""GPUs in MIG mode as the control plane keeps them: `Gpu.mig`.

    {"profiles": [{"name": "2g.35gb", "compute_slices": 2, "memory_mib": 33280, "size": 2, "starts": [0, 2, 4]}, …],
     "foreign": [{"profile": "1g.18gb", "start": 6, "size": 1}, …]}

`size` and `starts` count memory slices. Foreign instances are those that somebody else made on the machine.
"""

from typing import Any

import msgspec

from agent import wire

MIB = 1 << 20


def memory_mib_of(said: wire.Gpu) -> int:
    """Return the memory of the GPU that claims can have.

    In MIG mode that is at least the largest profile's: an H200's 7g.141gb has 143,360 MiB, and NVML gives the GPU
    itself 143,771 less 615 of its own.
    """
    largest = 0 if said.mig is msgspec.UNSET else max((one.memory_bytes for one in said.mig.profiles), default=0)
    return max(said.memory_bytes, largest) // MIB


def facts_of(said: wire.Gpu) -> dict[str, Any] | None:
    """Return what the agent says of the GPU's MIG mode, as the row keeps it; None: not in MIG mode.

    What cannot be is left out: places beyond the last slice, profiles without a place or memory, a name's second use.
    """
    if said.mig is msgspec.UNSET:
        return None
    profiles: dict[str, dict[str, Any]] = {}
    for profile in said.mig.profiles:
        starts = sorted({start for start in profile.starts if start + profile.size <= wire.MAX_SLICES})
        if starts and profile.memory_bytes >= MIB:
            facts = {
                "name": profile.name,
                "compute_slices": profile.compute_slices,
                "memory_mib": profile.memory_bytes // MIB,
                "size": profile.size,
                "starts": starts,
            }
            profiles.setdefault(profile.name, facts)
    return {"profiles": list(profiles.values()), "foreign": msgspec.to_builtins(said.mig.foreign)}
