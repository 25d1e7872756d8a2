"""What every request under /api/ passes before its view."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from gpucloud.api import problems

Handler = Callable[[HttpRequest], HttpResponse]


def limit_body(get_response: Handler) -> Handler:
    """Refuse a body that is too large before it is read, and serve the bare form of every API route."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith("/api/"):
            length = request.META.get("CONTENT_LENGTH") or "0"
            if not length.isdecimal() or int(length) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
                return problems.response(
                    413, "body-too-large", "Content Too Large", "The body is larger than 1 MiB; no request needs that."
                )
            if "\x00" in request.path_info:
                return problems.not_found(request)
            if not request.path_info.endswith(("/", ".yaml")):
                request.path_info += "/"
        return get_response(request)

    return middleware
