"""/nodes/{name}/lift-fence/ and /gpus/{uuid}/clear/: of machines, but their agents hear of it with their claims."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.views import GpuView, NodeView
from apps.quotas.idempotency import idempotent
from apps.scheduling.services.claims.health import clear_gpu, lift_fence
from gpucloud.api import etags


class NodeLiftFence(NodeView):
    """A node that was fenced because of what ran on it."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Let a fenced node take claims again. Only a process that is found after now fences it anew."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(lift_fence(principal=self.principal, node=self.find(name), versions=versions))


class GpuClear(GpuView):
    """A GPU with an XID error that only a reset cures."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, uuid: str) -> Response:
        """Say that the GPU is cured, after a reset. Its agent confirms it: see the GPU's conditions."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(clear_gpu(principal=self.principal, gpu=self.find(uuid), versions=versions))
