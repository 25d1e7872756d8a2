"""The OpenAPI document as it is served."""

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular import generators
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

# The published types of the package leave this one out.
SchemaGenerator: Any = generators.SchemaGenerator


class Document(SpectacularAPIView):
    """Made once in each process: making it takes a third of a second, and anybody may ask for it."""

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """The document, in YAML or JSON."""
        renderer: Any = type(request.accepted_renderer)
        return HttpResponse(_text(renderer), content_type=f"{renderer.media_type}; charset=utf-8")


@cache
def _text(renderer: Any) -> Any:
    return renderer().render(SchemaGenerator().get_schema(request=None, public=True), renderer_context={})
