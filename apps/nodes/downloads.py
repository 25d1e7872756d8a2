"""Public downloads for machines without an agent: identical for everyone and without secrets."""

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from apps.nodes.services.bundle import Bundle, bundle


@require_safe
def agent_bundle(request: HttpRequest, digest: str) -> HttpResponse:
    """Return the bundle with this digest; 404 for another version's."""
    made = _require_bundle()
    if digest != made.sha256[:16]:
        raise Http404("This server has another version of the agent: ask for the command again.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return HttpResponse(made.content, content_type="application/zip", headers=headers)


@require_safe
def agent_manifest(request: HttpRequest) -> JsonResponse:
    """Return the present bundle's manifest, which `gpucloud-agent upgrade` reads."""
    made = _require_bundle()
    return JsonResponse({"version": made.version, "sha256": made.sha256, "path": made.path})


def _require_bundle() -> Bundle:
    made = bundle()
    if made is None:
        raise Http404("libvcuda is not built on this server: `make -C libvcuda`.")
    return made
