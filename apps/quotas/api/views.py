"""Base classes of the API views of this and the higher apps: caller, scopes, entity tags."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Model, QuerySet
from django.shortcuts import get_object_or_404
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.principals import SYSTEM, Principal
from gpucloud.api import etags
from gpucloud.errors import PreconditionFailed

# Methods that change data.
CHANGES = frozenset({"POST", "PATCH", "DELETE"})


class ApiView(GenericAPIView[Any]):
    """View with a principal and with scopes for reads and writes."""

    read_scope: ClassVar[str | None] = None
    write_scope: ClassVar[str | None] = None
    lookup_key: ClassVar[str] = "pk"
    # True if its changes check If-Match themselves; without entity tags no If-Match can succeed.
    tagged: ClassVar[bool] = True
    # Methods that require If-Match.
    tag_required: ClassVar[frozenset[str]] = frozenset()
    # Query parameters of changes, by method. Others are refused: a route without support for `?dry_run=`
    # must not execute the change.
    change_parameters: ClassVar[Mapping[str, frozenset[str]]] = {}

    # The serializer of answers to changes, and the path of the row below /api/v1 that these name; "": they name none.
    answer_class: ClassVar[Any] = None
    address: ClassVar[str] = ""

    # Serializers of single methods, where the view has several; its `serializer_class` is for the others.
    serializer_classes: ClassVar[Mapping[str, Any]] = {}

    # Methods for operators only, refused to others before their body is read.
    operator_methods: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check scope, operator's role, parameters and tag.

        Raises ScopeMissing, Denied, ValidationError, PreconditionFailed.
        """
        super().initial(request, *args, **kwargs)
        if not hasattr(self, str(request.method).lower()):
            return  # DRF refuses the method afterwards
        reads = request.method in ("GET", "HEAD", "OPTIONS")
        if scope := self.read_scope if reads else self.write_scope:
            self.principal.require_scope(scope)
        if request.method in self.operator_methods:
            self.principal.require_operator()
        known = self.change_parameters.get(request.method or "", frozenset())
        if not reads and (unknown := set(request.query_params) - known):
            raise ValidationError({name: ["Unknown parameter."] for name in sorted(unknown)})
        if not (reads or self.tagged) and etags.if_match(request) is not None:
            raise PreconditionFailed("Nothing here has an entity tag: leave If-Match out.", current=None)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the rate limit's headers to every counted response."""
        response = super().finalize_response(request, response, *args, **kwargs)
        if bucket := getattr(self.request, "bucket", None):
            for name, value in bucket.headers().items():
                response.headers[name] = value
        return response

    @property
    def principal(self) -> Principal:
        """Principal of the request; the OpenAPI generator sees everything."""
        if getattr(self, "swagger_fake_view", False):
            return SYSTEM
        principal: Principal = self.request.user  # type: ignore[assignment]
        return principal

    def get_queryset(self) -> Any:
        """Return the rows of `queryset`; of a model whose rows belong to tenants, those that the caller may see."""
        rows: Any = super().get_queryset()
        return rows.visible_to(self.principal) if hasattr(rows, "visible_to") else rows

    def get_serializer_class(self) -> Any:
        """Return the serializer of the method."""
        return self.serializer_classes.get(self.request.method or "") or super().get_serializer_class()

    def find(self, key: object) -> Any:
        """Return the object with this key if the caller may see it; else 404."""
        return get_object_or_404(self.get_queryset(), **{self.lookup_key: key})

    def find_named(self) -> Any:
        """Return the object that the URL names; its part of the URL is called as the key."""
        return self.find(self.kwargs[self.lookup_key.rpartition("__")[2]])

    def parse_body(self, request: Request, *, partial: bool = False) -> dict[str, Any]:
        """Return the body, validated by the view's serializer. Raises ValidationError (400)."""
        serializer = self.get_serializer(data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        values: dict[str, Any] = serializer.validated_data
        if partial and not values:
            raise ValidationError({"non_field_errors": ["Name at least one field: nothing would change."]})
        return values

    def without_body(self, request: Request) -> None:
        """Require an empty body. Raises ValidationError (400)."""
        if request.data:
            raise ValidationError({str(name): ["This request has no fields."] for name in request.data})

    def answer(self, row: Model, *, status: int = 200) -> Response:
        """Return the serialized row with its entity tag."""
        return Response(
            self.get_serializer(row).data, status=status, headers={"ETag": etags.etag(getattr(row, "version", 1))}
        )

    def respond(self, row: Any, *, status: int = 200) -> Response:
        """Return the response to a change of the row, with its address."""
        kind = self.answer_class or self.get_serializer_class()
        headers = {"ETag": etags.etag(getattr(row, "version", 1))}
        if self.address:
            headers["Location"] = "/api/v1" + self.address.format(row=row)
        return Response(kind(row, context=self.get_serializer_context()).data, status=status, headers=headers)


class ListMixin(ApiView):
    """View of a collection, with filters and pages."""

    lists: ClassVar[bool] = True
    tagged: ClassVar[bool] = False
    # Reads the rows of a page by their keys, newest first (`gpucloud.fastpath.page_queries`); None: with the filter.
    rows_of_page: ClassVar[Any] = None

    def list_page(self, queryset: QuerySet[Any]) -> Response:
        """Return one page, newest first."""
        return self.get_paginated_response(self.get_serializer(self.read_page(queryset), many=True).data)

    def read_page(self, queryset: QuerySet[Any]) -> list[Any]:
        """Return the rows of the page that is asked for, newest first."""
        read = type(self).rows_of_page
        if read is None:
            return self.paginate_queryset(self.filter_queryset(queryset)) or []
        keys = self.paginate_queryset(self.filter_queryset(queryset).values("pk")) or []
        rows: list[Any] = read([row["pk"] for row in keys])
        return rows
