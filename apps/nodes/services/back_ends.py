"""Back ends of GPUs: which a node serves, and what each means for a claim (docs/backends.md)."""

from typing import cast

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models.pool import BackEnd, MpsGroup


def back_end_of(backend: str, gpu_count: int) -> wire.BackEnd:
    """Return the back end of a claim of so many GPUs on a GPU with this one.

    A client of MPS has one server, and a server has one GPU: a claim of several GPUs runs beside the servers, by the
    driver's time slices.
    """
    return "native" if backend == BackEnd.MPS and gpu_count > 1 else cast(wire.BackEnd, backend)


def serves(node: Node, backend: str) -> bool:
    """Return whether the agent of the node can serve this back end."""
    return backend == BackEnd.TURNS or backend in node.backends


def trust_group_of(backend: str, mps_group: str) -> str:
    """Return the trust group of the claims on such a GPU as the agent takes it; empty: each tenant is one."""
    return wire.ALL_TENANTS if (backend, mps_group) == (BackEnd.MPS, MpsGroup.POOL) else ""


def sharing_group(backend: str, mps_group: str, tenant_id: int) -> str | None:
    """Return the group whose claims had better have a GPU with this back end to themselves; None: any share it.

    Servers of two tenants take turns, and each claim keeps its part of the multiprocessors in its server's turn: two
    GEMMs reach 58 % of the GPU together, where one server reaches 96 % (docs/benchmarks.md).
    """
    if backend != BackEnd.MPS:
        return None
    return "mps" if mps_group == MpsGroup.POOL else f"mps {tenant_id}"
