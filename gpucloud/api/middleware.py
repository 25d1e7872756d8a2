"""What every request under /api/ passes before its view."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from gpucloud.api import problems

Handler = Callable[[HttpRequest], HttpResponse]


def bare_form(get_response: Handler) -> Handler:
    """Serve every API route without its last slash too."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith("/api/"):
            if "\x00" in request.path_info:
                return problems.not_found(request)
            if not request.path_info.endswith(("/", ".yaml")):
                request.path_info += "/"
        return get_response(request)

    return middleware
