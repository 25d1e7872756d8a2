"""Views of /gpus/{uuid}/: one GPU, its cordon with a dry run that counts the affected claims, and clear/."""

from dataclasses import asdict

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.serializers import GpuSerializer
from apps.nodes.api.views import GpuView
from apps.nodes.services import gpus
from apps.quotas.api.methods import order, shows
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.services.claims.health import clear_gpu
from apps.scheduling.services.previews.gpu_cordons import effects_of_cordon
from gpucloud.api import etags, shown
from gpucloud.api.serializers import Strict, either


class CordonPreviewSerializer(Strict):
    """The effects of cordoning a GPU."""

    dry_run = shown.flag()
    uuid = shown.text()
    cordoned = shown.flag("The requested value.")
    claims = shown.integer("Claims on the GPU; they stay and keep running.")
    waiting = shown.integer("Queued claims that fit the free share of the GPU now: they wait for another one.")
    reservations = shown.integer(
        "Booked reservations on the GPU: they get another one when they begin, if there is one."
    )
    last = shown.flag("True if no other GPU of the model takes new claims in the pool.")


GPU_OR_PREVIEW = either("GpuOrCordonPreview", GpuSerializer, CordonPreviewSerializer)


class GpuDetail(GpuView):
    """One GPU."""

    change_parameters = {"PATCH": frozenset({"dry_run"})}
    get = shows("Show a GPU.")

    @extend_schema(parameters=[DRY_RUN], responses={200: GPU_OR_PREVIEW})
    def patch(self, request: Request, uuid: str) -> Response:
        """Cordon or uncordon a GPU; with `dry_run`, count the claims and reservations that this affects."""
        gpu = self.find(uuid)
        self.principal.require_operator()
        values, versions = self.parse_body(request), etags.if_match(request)
        if dry_run(request):
            counts = effects_of_cordon(gpu)
            shown = {"uuid": gpu.uuid, **values, **asdict(counts)}
            return Response({"dry_run": True, **CordonPreviewSerializer(shown).data})
        gpus.cordon_gpu(principal=self.principal, gpu=gpu, versions=versions, **values)
        return self.answer(self.find(uuid))


GpuClear = order(
    GpuView, clear_gpu, "gpu", "Declare the GPU cured, after a reset. Its agent confirms it: see the GPU's conditions."
)
