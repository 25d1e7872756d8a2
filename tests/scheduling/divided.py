"""GPUs in MIG mode for tests: the profiles and placements of NVIDIA's MIG user guide."""

from agent import wire
from apps.scheduling.core.mig import Profile

GIB = 1 << 30
# name, compute slices, GiB of memory, memory slices, first slices
PROFILES = {
    "H200": [
        ("1g.18gb", 1, 16.0, 1, (0, 1, 2, 3, 4, 5, 6)),
        ("1g.35gb", 1, 32.5, 2, (0, 2, 4, 6)),
        ("2g.35gb", 2, 32.5, 2, (0, 2, 4)),
        ("3g.71gb", 3, 69.5, 4, (0, 4)),
        ("4g.71gb", 4, 69.5, 4, (0,)),
        ("7g.141gb", 7, 140.0, 8, (0,)),
    ],
    "A100": [
        ("1g.5gb", 1, 4.75, 1, (0, 1, 2, 3, 4, 5, 6)),
        ("1g.10gb", 1, 9.75, 2, (0, 2, 4, 6)),
        ("2g.10gb", 2, 9.75, 2, (0, 2, 4)),
        ("3g.20gb", 3, 19.625, 4, (0, 4)),
        ("4g.20gb", 4, 19.625, 4, (0,)),
        ("7g.40gb", 7, 39.5, 8, (0,)),
    ],
    "A30": [
        ("1g.6gb", 1, 5.81, 1, (0, 1, 2, 3)),
        ("2g.12gb", 2, 11.69, 2, (0, 2)),
        ("4g.24gb", 4, 23.44, 4, (0,)),
    ],
}
MEMORY_MIB = {"H200": 140 * 1024, "A100": 40448, "A30": 24064}


def profiles(model: str = "H200") -> tuple[Profile, ...]:
    """Return the profiles as the core has them."""
    return tuple(
        Profile(name, compute, int(gib * 1024), size, starts) for name, compute, gib, size, starts in PROFILES[model]
    )


def on_the_wire(model: str = "H200", foreign: list[wire.MigPlace] | None = None) -> wire.Mig:
    """Return the GPU as an agent describes it."""
    return wire.Mig(
        profiles=[
            wire.MigProfile(
                name=one.name,
                compute_slices=one.compute,
                memory_bytes=one.memory_mib << 20,
                size=one.size,
                starts=list(one.starts),
            )
            for one in profiles(model)
        ],
        foreign=foreign or [],
    )
