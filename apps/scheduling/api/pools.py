"""The view of /pools/{name}/, with changes that reach the claims in the pool."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import pool_serializers as serializers
from apps.quotas.api.views import CHANGES, ApiView
from apps.quotas.models import Pool
from apps.scheduling.services.claims.sharing import change_pool
from gpucloud.api import etags


class PoolDetail(ApiView):
    """One pool."""

    serializer_class: Any = serializers.PoolSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES

    def get_serializer_class(self) -> Any:
        """Return the serializer: a change has no name, as a pool's name never changes."""
        return serializers.PoolChangeSerializer if self.request.method == "PATCH" else super().get_serializer_class()

    def get(self, request: Request, name: str) -> Response:
        """Show a pool."""
        return self.answer(self.find(name))

    def patch(self, request: Request, name: str) -> Response:
        """Change how its GPUs are shared, live: running programs follow within one push to each node."""
        pool = self.find(name)
        values = self.parse_body(request, partial=True)
        versions = etags.if_match(request)
        return self.answer(change_pool(principal=self.principal, pool=pool, versions=versions, **values))
