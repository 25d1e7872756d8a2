"""Back ends of GPUs: chosen with the first claim on a GPU, and kept until the last of them has left (decision 0102)."""

from collections.abc import Collection
from typing import cast

from django.db.models import Exists, OuterRef, Q, Subquery

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool
from apps.quotas.models.pool import BackEnd
from apps.scheduling.models import Assignment


def back_end_of(backend: str, gpu_count: int) -> wire.BackEnd:
    """Return the back end of a claim of so many GPUs on a GPU with this one.

    A client of MPS has one server, and a server has one GPU: a claim of several GPUs runs beside the servers, by the
    driver's time slices.
    """
    return "native" if backend == BackEnd.MPS and gpu_count > 1 else cast(wire.BackEnd, backend)


def serves(node: Node, backend: str) -> bool:
    """Return whether the agent of the node can serve this back end."""
    return backend == BackEnd.TURNS or backend in node.backends


def follow_pools(gpus: Collection[Gpu]) -> None:
    """Give the locked GPUs on which no claim is the back ends of their pools; call it before assignments are written.

    Their nodes and pools must be loaded. A suspended claim is on the GPU where it was suspended.
    """
    # A MIG instance is shared with nobody.
    changed = [gpu.pk for gpu in gpus if gpu.node.pool.backend != gpu.backend and gpu.mig is None]
    if not changed:
        return
    on_it = Q(gpu=OuterRef("pk")) | Q(other_gpu=OuterRef("pk")) | Q(return_gpu=OuterRef("pk"))
    empty = Gpu.objects.filter(pk__in=changed).exclude(Exists(Assignment.objects.live().filter(on_it)))
    pool = Pool.objects.filter(nodes__gpus=OuterRef("pk"))
    empty.update(backend=Subquery(pool.values("backend")[:1]))


def differing(pool: Pool) -> int:
    """Return the number of the pool's GPUs whose claims still use another back end."""
    live = Assignment.objects.live().filter(gpu=OuterRef("pk"))
    return Gpu.objects.filter(Exists(live), node__pool=pool).exclude(backend=pool.backend).count()


def unable(pool: Pool) -> list[Node]:
    """Return the pool's nodes whose agents cannot serve its back end: they take no new claims."""
    return [node for node in Node.objects.filter(pool=pool).order_by("name") if not serves(node, pool.backend)]
