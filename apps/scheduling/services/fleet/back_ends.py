"""Back ends of GPUs: chosen with the first claim on a GPU, and kept until the last of them has left (decision 0102)."""

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q, Subquery

from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.scheduling.models import Assignment


def follow_pools(gpus: Collection[Gpu]) -> None:
    """Give the locked GPUs on which no claim is the back ends of their pools; call it before assignments are written.

    Their nodes and pools must be loaded. A suspended claim is on the GPU where it was suspended.
    """
    # A MIG instance is shared with nobody.
    changed = [gpu.pk for gpu in gpus if _wanted(gpu.node.pool) != (gpu.backend, gpu.mps_group) and gpu.mig is None]
    if not changed:
        return
    on_it = Q(gpu=OuterRef("pk")) | Q(other_gpu=OuterRef("pk")) | Q(return_gpu=OuterRef("pk"))
    empty = Gpu.objects.filter(pk__in=changed).exclude(Exists(Assignment.objects.live().filter(on_it)))
    pool = Pool.objects.filter(nodes__gpus=OuterRef("pk"))
    empty.update(**{name: Subquery(pool.values(name)[:1]) for name in ("backend", "mps_group")})


def _wanted(pool: Pool) -> tuple[str, str]:
    return pool.backend, pool.mps_group
