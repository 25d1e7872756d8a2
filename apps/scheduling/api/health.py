"""Views of /nodes/{name}/lift-fence/ and /gpus/{uuid}/clear/, which agents receive with their desired state."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.views import GpuView, NodeView
from apps.quotas.idempotency import idempotent
from apps.scheduling.services.claims.health import clear_gpu, lift_fence
from gpucloud.api import etags


class NodeLiftFence(NodeView):
    """The order to lift the fence of a node."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Let a fenced node take claims again. Only a process that is found after now fences it anew."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(lift_fence(principal=self.principal, node=self.find(name), versions=versions))


class GpuClear(GpuView):
    """The order to clear an XID error that only a reset cures."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, uuid: str) -> Response:
        """Declare the GPU cured, after a reset. Its agent confirms it: see the GPU's conditions."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(clear_gpu(principal=self.principal, gpu=self.find(uuid), versions=versions))
