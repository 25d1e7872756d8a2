"""The contents of the demo: three tenants, two pools, and a handful of claims with real programs under them."""

from dataclasses import dataclass

GIB = 1024  # in MiB


@dataclass(frozen=True, slots=True)
class SeededClaim:
    """A claim in pool `shared`, and the options of the GPU program that runs under it."""

    tenant: str
    name: str
    core_request: int
    core_limit: int
    memory_mib: int
    program: tuple[str, ...]
    gpu_count: int = 1


# Quotas by tenant: percent of core, MiB of memory, vGPUs, over all pools.
TENANTS = {
    "acme": ("Acme Robotics", 300, 72 * GIB, 12),
    "globex": ("Globex Search", 200, 48 * GIB, 8),
    "initech": ("Initech Labs", 150, 48 * GIB, 6),
}
POOLS = {
    "default": "Empty at first: yours to try",
    "shared": "Carries the demo's claims",
}
CLAIMS = (
    SeededClaim("acme", "train-resnet", 50, 80, 8 * GIB, ("--memory", "5GiB", "--kernel-us", "2000")),
    SeededClaim("acme", "notebook", 10, 30, 4 * GIB, ("--memory", "1GiB", "--kernel-us", "400", "--sync")),
    SeededClaim("globex", "inference", 30, 30, 6 * GIB, ("--memory", "3GiB", "--kernel-us", "800", "--sync")),
    SeededClaim("globex", "embed-batch", 25, 60, 10 * GIB, ("--memory", "7GiB", "--kernel-us", "1500")),
    SeededClaim("initech", "finetune", 40, 40, 12 * GIB, ("--memory", "9GiB", "--kernel-us", "3000"), gpu_count=2),
)
