"""What this app's and the higher apps' API views share: who asks, scopes, entity tags."""

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

# Every method that changes something.
CHANGES = frozenset({"POST", "PATCH", "DELETE"})


class ApiView(GenericAPIView[Any]):
    """A view that knows its caller, and which scope a read and a write need."""

    read_scope: ClassVar[str | None] = None
    write_scope: ClassVar[str | None] = None
    lookup_key: ClassVar[str] = "pk"
    # Whether its changes look at If-Match themselves; where nothing has an entity tag, no tag matches.
    tagged: ClassVar[bool] = True
    # The methods that do not go without If-Match.
    tag_required: ClassVar[frozenset[str]] = frozenset()
    # Query parameters that a change may carry, by method. Others are refused: a route that does not know `?dry_run=`
    # must not take it for an order.
    change_parameters: ClassVar[Mapping[str, frozenset[str]]] = {}

    # The methods that are the operators' alone, refused to others before anything that they sent is read.
    operator_methods: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check scope, operator's role, parameters and tag.

        Raises ScopeMissing, Denied, ValidationError, PreconditionFailed.
        """
        super().initial(request, *args, **kwargs)
        if not hasattr(self, str(request.method).lower()):
            return  # the refusal follows, whatever else is wrong
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
        """Every counted answer says what is left of the caller's bucket."""
        response = super().finalize_response(request, response, *args, **kwargs)
        if bucket := getattr(self.request, "bucket", None):
            for name, value in bucket.headers().items():
                response.headers[name] = value
        return response

    @property
    def principal(self) -> Principal:
        """Who is asking; the OpenAPI generator sees everything."""
        if getattr(self, "swagger_fake_view", False):
            return SYSTEM
        principal: Principal = self.request.user  # type: ignore[assignment]
        return principal

    def find(self, key: object) -> Any:
        """The object with this key among those the caller may see; else 404."""
        return get_object_or_404(self.get_queryset(), **{self.lookup_key: key})

    def parse_body(self, request: Request, *, partial: bool = False) -> dict[str, Any]:
        """The body, checked by the view's serializer. Raises ValidationError (400)."""
        serializer = self.get_serializer(data=request.data, partial=partial)
        serializer.is_valid(raise_exception=True)
        values: dict[str, Any] = serializer.validated_data
        if partial and not values:
            raise ValidationError({"non_field_errors": ["Name at least one field: nothing would change."]})
        return values

    def without_body(self, request: Request) -> None:
        """For a POST that has no fields. Raises ValidationError (400)."""
        if request.data:
            raise ValidationError({str(name): ["This request has no fields."] for name in request.data})

    def answer(self, row: Model, *, status: int = 200) -> Response:
        """The row as the view's serializer shows it, with its entity tag."""
        return Response(
            self.get_serializer(row).data, status=status, headers={"ETag": etags.etag(getattr(row, "version", 1))}
        )


class ListMixin(ApiView):
    """GET of a collection: filtered, paged."""

    lists: ClassVar[bool] = True
    tagged: ClassVar[bool] = False

    def list_page(self, queryset: QuerySet[Any]) -> Response:
        """One page, newest first."""
        page = self.paginate_queryset(self.filter_queryset(queryset))
        return self.get_paginated_response(self.get_serializer(page, many=True).data)
