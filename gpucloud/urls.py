"""Root URL configuration."""

import sys

from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.urls import include, path
from django.views import defaults
from drf_spectacular.views import SpectacularSwaggerView

from apps.jobs.downloads import run_files
from apps.nodes import downloads
from gpucloud import health
from gpucloud.api import problems
from gpucloud.api.document import Document
from gpucloud.fastpath.database.outages import is_away
from gpucloud.web.records import records

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("agent/bundle.json", downloads.agent_manifest),
    path("agent/gpucloud-agent-<slug:digest>.pyz", downloads.agent_bundle),
    path("agent/job-files/<uuid:run_uid>", run_files),
    path("api/v1/openapi.yaml", Document.as_view(), name="openapi"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="openapi"), name="api-docs"),
    path("api/v1/", include("apps.quotas.api.urls")),
    path("api/v1/", include("apps.nodes.api.urls")),
    path("api/v1/", include("apps.scheduling.api.urls")),
    path("api/v1/", include("apps.reservations.api.urls")),
    path("api/v1/", include("apps.accounting.api.urls")),
    path("api/v1/", include("apps.whatif.api.urls")),
    path("api/v1/", include("apps.forecasts.api.urls")),
    path("api/v1/", include("apps.suspension.api.urls")),
    path("api/v1/", include("apps.groups.api.urls")),
    path("api/v1/", include("apps.jobs.api.urls")),
    path("api/v1/", include("apps.remote.api")),
    path("api/v1/", include("apps.notices.api")),
    path("api/v1/", include("apps.clusters.api.urls")),
    path("admin/", records.urls),
    path("", include("apps.metrics.views")),
    path("", include("apps.console.urls")),
    path("", include("apps.console.clusters.urls")),
]


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an unknown URL: problem details below /api/, a page elsewhere."""
    if request.path.startswith("/api/"):
        return problems.not_found(request, exception)
    return defaults.page_not_found(request, exception)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that Django itself refuses, such as a foreign Host.

    Problem details below /api/, a page elsewhere.
    """
    if request.path.startswith("/api/"):
        return problems.response(
            400, "bad-request", "Bad Request", "The request is malformed, or its Host is not ours."
        )
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an internal error, or 503 while the database is away: problem details below /api/, a page elsewhere."""
    if is_away(sys.exc_info()[1]):
        return _unavailable(request)
    if request.path.startswith("/api/"):
        return problems.server_error(request)
    return defaults.server_error(request)


def _unavailable(request: HttpRequest) -> HttpResponse:
    if request.path.startswith("/api/"):
        return problems.database_unavailable()
    # Without the request: its session and its user are in the database.
    page = HttpResponse(loader.render_to_string("503.html"), status=503)
    page["Retry-After"] = problems.RETRY_AFTER
    return page


handler400 = "gpucloud.urls.bad_request"
handler404 = "gpucloud.urls.not_found"
handler500 = "gpucloud.urls.server_error"
