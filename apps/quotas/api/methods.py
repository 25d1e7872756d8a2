"""Methods that views of rows share: list, show, create, change, remove; and whole views that give an order.

Each function takes the service that acts and the operation's description in the API's document. A service that acts on
the row of the view's URL gets it under the name `row`.
"""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from gpucloud.api import etags

Method = Callable[..., Response]


def lists(text: str) -> Method:
    """Return a GET that lists the view's rows."""

    def get(view: ListMixin, request: Request, **_: Any) -> Response:
        return view.list_page(view.get_queryset())

    return _described(get, text)


def shows(text: str) -> Method:
    """Return a GET that shows the row of the URL."""

    def get(view: ApiView, request: Request, **_: Any) -> Response:
        return view.answer(view.find_named())

    return _described(get, text)


def creates(service: Callable[..., Any], text: str) -> Method:
    """Return a POST that makes a row from the body."""

    def post(view: ApiView, request: Request, **_: Any) -> Response:
        return view.respond(service(principal=view.principal, **view.parse_body(request)), status=201)

    return idempotent(_described(post, text))


def changes(service: Callable[..., Any], row: str, text: str) -> Method:
    """Return a PATCH that changes the row of the URL."""

    def patch(view: ApiView, request: Request, **_: Any) -> Response:
        named = {row: view.find_named()}
        values, versions = view.parse_body(request, partial=True), etags.if_match(request)
        return view.respond(service(principal=view.principal, versions=versions, **named, **values))

    return _described(patch, text)


def removes(service: Callable[..., Any], row: str, text: str) -> Method:
    """Return a DELETE of the row of the URL."""

    @extend_schema(responses={204: None})
    def delete(view: ApiView, request: Request, **_: Any) -> Response:
        service(principal=view.principal, **{row: view.find_named()}, versions=etags.if_match(request))
        return Response(status=204)

    return _described(delete, text)


def order(
    base: type[ApiView], service: Callable[..., Any], row: str, text: str, *, body: Any = None, tagged: bool = False
) -> type[ApiView]:
    """Return the view of an order: a POST that does something to the row of the base's URL.

    `body` is the serializer of what the order says; without one it says nothing. `tagged`: it needs If-Match.
    """

    def post(view: ApiView, request: Request, **_: Any) -> Response:
        if body is None:
            view.without_body(request)
        named, values = {row: view.find_named()}, view.parse_body(request) if body else {}
        versions = etags.if_match(request, required=tagged)
        return view.respond(service(principal=view.principal, versions=versions, **named, **values))

    method = idempotent(_described(post, text))
    facts = {"serializer_class": body} if body else {}
    parts = {"post": method if body else extend_schema(request=None)(method), "__doc__": text, **facts}
    return type(f"{base.__name__}Order", (base,), parts)


def _described(method: Method, text: str) -> Method:
    method.__doc__ = text
    return method
