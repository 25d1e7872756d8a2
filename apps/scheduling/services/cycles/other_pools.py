"""Other pools that could carry a claim now: one query over the free room of GPUs."""

from django.db.models import Count, F
from django.utils import timezone

from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import FRESH
from apps.scheduling.core.nearest import Suggestion
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.fleet.devices import on_nodes_with

MOST_POOLS = 3


def pools_with_room(claim: Claim) -> tuple[Suggestion, ...]:
    """Return the first few pools, by name, in which one node has the GPUs free. The tenant's quota there is not read.

    Claims with labels get nothing, because the labels of other pools' claims are not read; nor do claims with a MIG
    profile, which is one of their own pool.
    """
    request = request_of(claim)
    if request.labels or request.profile is not None:
        return ()
    gpus = Gpu.objects.filter(
        present=True,
        mig__isnull=True,
        cordoned=False,
        core_used__lte=WHOLE - claim.core_request - F("core_outside"),
        memory_used_mib__lte=F("memory_mib") - F("memory_outside_mib") - claim.memory_mib,
        unhealthy="",
        node__cordoned=False,
        node__unhealthy="",
        node__fenced_at=None,
        node__returning_frame=None,
        node__last_seen_at__gte=timezone.now() - FRESH,
    ).exclude(node__pool=claim.pool_id)
    if request.models:
        gpus = gpus.filter(model__in=request.models)
    if request.node_selector:
        gpus = gpus.filter(on_nodes_with(dict(request.node_selector)))
    nodes = gpus.values("node", "node__pool__name").annotate(free=Count("pk")).filter(free__gte=claim.gpu_count)
    names = sorted(set(nodes.order_by().values_list("node__pool__name", flat=True)))[:MOST_POOLS]
    return tuple(Suggestion("pool", name, f"Create it in pool {name} to start now") for name in names)
