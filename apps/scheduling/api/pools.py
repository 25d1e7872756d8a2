"""The view of /pools/{name}/, with changes that reach the claims in the pool."""

from typing import Any

from apps.quotas.api import pool_serializers as serializers
from apps.quotas.api.methods import changes, shows
from apps.quotas.api.views import CHANGES, ApiView
from apps.quotas.models import Pool
from apps.scheduling.services.claims.sharing import change_pool


class PoolDetail(ApiView):
    """One pool."""

    serializer_class: Any = serializers.PoolSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES
    serializer_classes = {"PATCH": serializers.PoolChangeSerializer}

    get = shows("Show a pool.")
    patch = changes(
        change_pool,
        "pool",
        "Change how its GPUs are shared, live: running programs follow within one push to each node.",
    )
