"""The files of runs for the agents of their nodes, each with the node's own credential."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from apps.jobs.services.files import read_piece
from apps.nodes.services.nodes import authenticate

# Ten digits: above any archive, and below what the database's numbers hold.
MOST_DIGITS = 10


@require_safe
def run_files(request: HttpRequest, run_uid: UUID) -> HttpResponse:
    """Return the next piece of the archive of a run that the node has, from `?offset=` on; 404 without one."""
    node = authenticate(credential=request.headers.get("Authorization", "").removeprefix("Bearer "))
    if node is None:
        return JsonResponse({"title": "Only the agent of a node reads these files."}, status=401)
    text = request.GET.get("offset", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        return JsonResponse({"title": "offset is no number of bytes."}, status=400)
    data = read_piece(node, run_uid, int(text))
    if data is None:
        return JsonResponse({"title": "There are no such files for this node."}, status=404)
    return HttpResponse(data, content_type="application/octet-stream", headers={"Cache-Control": "no-store"})
