"""Middleware for pages: security headers, and a page where Django's own response is empty."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gpucloud.web.languages import PROGRAMS

# No inline scripts or styles; uPlot sets element styles from script, which this allows.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
# The interactive API reference has its own inline start script.
DOCS_POLICY = POLICY.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'").replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
)


def security_headers(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Set Content-Security-Policy and Permissions-Policy; Django's own middleware sets the other headers."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        docs = request.path.startswith("/api/docs/")
        response.headers.setdefault("Content-Security-Policy", DOCS_POLICY if docs else POLICY)
        response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
        return response

    return middleware


def page_for_method_not_allowed(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Show a page to a reader who follows a link to an address that takes POST only."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if response.status_code != 405 or request.method != "GET" or request.path.startswith(PROGRAMS):
            return response
        page = render(request, "405.html", status=405)
        page["Allow"] = response["Allow"]
        return page

    return middleware
