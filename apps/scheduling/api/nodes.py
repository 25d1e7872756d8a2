"""/nodes/{name}/forget/: of nodes, but it ends claims."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.views import NodeView
from apps.quotas.idempotency import idempotent
from apps.scheduling.services.claims.forgetting import forget_node
from gpucloud.api import etags


class NodeForget(NodeView):
    """A node that will not come back."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Release everything that a lost node carries, and shut its agent out until it is enrolled anew."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(forget_node(principal=self.principal, node=self.find(name), versions=versions))
