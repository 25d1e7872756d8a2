"""Effects of a pool's back end on its GPUs and nodes, for the preview of a change."""

from django.db.models import Exists, OuterRef, Q

from apps.nodes.models import Gpu, Node
from apps.nodes.services.back_ends import serves
from apps.quotas.models import Pool
from apps.quotas.models.pool import BackEnd
from apps.scheduling.models import Assignment


def differing(pool: Pool) -> int:
    """Return the number of the pool's GPUs whose claims still use another back end, or other MPS servers."""
    live = Assignment.objects.live().filter(gpu=OuterRef("pk"))
    alike = Q(backend=pool.backend)
    if pool.backend == BackEnd.MPS:
        alike &= Q(mps_group=pool.mps_group)
    return Gpu.objects.filter(Exists(live), node__pool=pool).exclude(alike).count()


def unable(pool: Pool) -> list[Node]:
    """Return the pool's nodes whose agents cannot serve its back end: they take no new claims."""
    return [node for node in Node.objects.filter(pool=pool).order_by("name") if not serves(node, pool.backend)]
