"""View of the OpenAPI document."""

from functools import cache
from typing import Any

from django.http import HttpResponse
from drf_spectacular import generators
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

# The package's published types omit this attribute.
SchemaGenerator: Any = generators.SchemaGenerator


class Document(SpectacularAPIView):
    """The OpenAPI document, generated once per process.

    Generating it takes a third of a second, and anybody may request it.
    """

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the document as YAML or JSON."""
        renderer: Any = type(request.accepted_renderer)
        return HttpResponse(_text(renderer), content_type=f"{renderer.media_type}; charset=utf-8")


@cache
def _text(renderer: Any) -> Any:
    return renderer().render(SchemaGenerator().get_schema(request=None, public=True), renderer_context={})
