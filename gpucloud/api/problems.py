"""Errors as RFC 9457 problem details: the only mapping of error kinds to status codes."""

import logging
from http import HTTPStatus
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from gpucloud import errors
from gpucloud.fastpath.database.outages import is_away

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

# The first match wins, so subclasses stand before their parents.
STATUS_OF: list[tuple[type[errors.GpucloudError], int]] = [
    (errors.PreconditionFailed, 412),
    (errors.PreconditionRequired, 428),
    (errors.Conflict, 409),
    (errors.Denied, 403),
    (errors.Missing, 404),
    (errors.Invalid, 422),
    (errors.Busy, 429),
]

UNAVAILABLE = "database-unavailable", "Try again later", "The database did not answer in time."
# Seconds.
RETRY_AFTER = "1"


def problem(status: int, code: str, title: str, detail: str, **facts: Any) -> dict[str, Any]:
    """Return the body of a problem response; `facts` are typed values about this occurrence."""
    return {"type": f"/problems/{code}", "title": title, "status": status, "detail": detail, **facts}


def response(status: int, code: str, title: str, detail: str, **facts: Any) -> HttpResponse:
    """Return a problem response outside DRF (unknown URLs, middleware)."""
    return JsonResponse(problem(status, code, title, detail, **facts), status=status, content_type=MEDIA_TYPE)


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an exception into a problem response and roll the transaction back; DRF calls this hook."""
    status, body, headers = _describe(exc)
    if status is None:
        return None
    set_rollback()
    return Response(body, status=status, headers=headers, content_type=MEDIA_TYPE)


def _describe(exc: Exception) -> tuple[int | None, dict[str, Any], dict[str, str]]:
    if isinstance(exc, errors.GpucloudError):
        return _domain(exc)
    if isinstance(exc, exceptions.ValidationError):
        detail = "Some fields are wrong: see `errors`."
        return 400, problem(400, "invalid-fields", "Invalid fields", detail, errors=_by_field(exc.detail)), {}
    if isinstance(exc, exceptions.APIException):
        return _framework(exc)
    if isinstance(exc, ObjectDoesNotExist):
        # The row was deleted after it was found and before it was locked. If there is another reason, the log has it.
        logger.warning("gone meanwhile: %s", exc, exc_info=exc)
    if isinstance(exc, Http404 | ObjectDoesNotExist):
        return 404, problem(404, "not-found", "Not found", "There is nothing here that you may see."), {}
    if isinstance(exc, PermissionDenied):
        return 403, problem(403, "denied", "Not allowed", str(exc) or "You may not do this."), {}
    if is_away(exc):
        # The database is down, fails over or aborted the transaction (deadlock, timeout).
        logger.warning("database unavailable: %s", exc)
        return 503, problem(503, *UNAVAILABLE), {"Retry-After": RETRY_AFTER}
    return None, {}, {}


def _domain(exc: errors.GpucloudError) -> tuple[int, dict[str, Any], dict[str, str]]:
    status = next((code for kind, code in STATUS_OF if isinstance(exc, kind)), 500)
    headers = {}
    if isinstance(exc, errors.Busy):
        headers["Retry-After"] = str(exc.retry_after_seconds)
        status = exc.facts.pop("status", status)
    return status, problem(status, exc.code, exc.title, exc.detail, **exc.facts), headers


def _framework(exc: exceptions.APIException) -> tuple[int, dict[str, Any], dict[str, str]]:
    status = exc.status_code
    code = {401: "unauthenticated", 403: "denied", 404: "not-found", 405: "method-not-allowed", 429: "throttled"}.get(
        status, str(exc.default_code).replace("_", "-")
    )
    headers = {}
    if challenge := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait) + 1)
    return status, problem(status, code, HTTPStatus(status).phrase, str(exc.detail)), headers


def _by_field(detail: Any) -> dict[str, Any]:
    return detail if isinstance(detail, dict) else {"non_field_errors": detail}


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer unknown URLs under /api/ with problem details."""
    return response(404, "not-found", "Not found", f"There is no {request.path}: see /api/docs/.")


def database_unavailable() -> HttpResponse:
    """Answer a request that failed because the database is away, outside DRF."""
    answer = response(503, *UNAVAILABLE)
    answer["Retry-After"] = RETRY_AFTER
    return answer


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an internal error under /api/ with problem details; the log has the traceback."""
    return response(500, "internal", "Server error", "The error was logged.")
