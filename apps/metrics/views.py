"""Views of `/metrics` and `/metric`: for Prometheus, so neither throttled nor part of the API."""

import ipaddress

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_safe
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.metrics.scrape import Devices, Platform
from apps.quotas.authentication import BearerToken, source_of
from gpucloud.api import problems
from gpucloud.errors import Busy, Denied

SCOPE = "utilization:read"
HOW = f"Send `Authorization: Bearer` with an operator's token of the scope {SCOPE}, or have METRICS_CIDRS name you."


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return all metrics."""
    return _answer(request, Platform())


@require_safe
def metric(request: HttpRequest) -> HttpResponse:
    """Return claims and GPUs under the names of gpu-manager and dcgm-exporter, at gpu-manager's own path."""
    return _answer(request, Devices())


def _answer(request: HttpRequest, collector: Collector) -> HttpResponse:
    if refusal := _refusal(request):
        return refusal
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(collector), content_type=content_type, headers={"Cache-Control": "no-store"})


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """Return the refusal; None for a network of the settings, and for an operator's token."""
    if _is_let_in(source_of(request)):
        return None
    try:
        found = BearerToken().authenticate(Request(request))
        if found is None:
            raise AuthenticationFailed(HOW)
        found[0].require_operator()
        found[0].require_scope(SCOPE)
    except AuthenticationFailed as error:
        answer = problems.response(401, "unauthenticated", "Unauthorized", str(error.detail))
        answer.headers["WWW-Authenticate"] = 'Bearer realm="gpucloud"'
        return answer
    except Denied as error:
        return problems.response(403, error.code, error.title, error.detail)
    except Busy as error:
        answer = problems.response(429, error.code, error.title, error.detail)
        answer.headers["Retry-After"] = str(error.retry_after_seconds)
        return answer
    return None


def _is_let_in(address: str | None) -> bool:
    if address is None:
        return False
    return any(ipaddress.ip_address(address) in network for network in settings.METRICS_CIDRS)


urlpatterns = [path("metrics", metrics, name="metrics"), path("metric", metric, name="metric")]
