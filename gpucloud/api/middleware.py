"""Middleware for requests under /api/ and for counting all requests."""

import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from gpucloud import counters
from gpucloud.api import problems

Handler = Callable[[HttpRequest], HttpResponse]


# Other methods share one label: a client may send any word as its method, and each would be a series.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def count_requests(get_response: Handler) -> Handler:
    """Count the request by its route.

    Paths would be too many series: one per object, and any that a client invents.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        response = get_response(request)
        method = request.method if request.method in METHODS else "other"
        route = request.resolver_match.route if request.resolver_match else "none"
        counters.HTTP_REQUESTS.add(str(method), f"/{route}", str(response.status_code))
        counters.HTTP_SECONDS.observe(time.perf_counter() - started, str(method))
        return response

    return middleware


def serve_without_slash(get_response: Handler) -> Handler:
    """Serve every API route without its trailing slash too."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith("/api/"):
            if "\x00" in request.path_info:
                return problems.not_found(request)
            if not request.path_info.endswith(("/", ".yaml")):
                request.path_info += "/"
        return get_response(request)

    return middleware
