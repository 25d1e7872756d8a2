"""Query filters: allow-listed, and a misspelt one is an error instead of the whole list."""

from typing import Any

from django.db.models import QuerySet
from django_filters.rest_framework import BooleanFilter, DjangoFilterBackend, FilterSet, IsoDateTimeFilter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.views import APIView

ALWAYS = {"cursor", "limit", "format"}


class Changed(FilterSet):
    """For lists of rows that know when they were last changed."""

    updated_since = IsoDateTimeFilter(field_name="updated_at", lookup_expr="gte")


class StrictFilterBackend(DjangoFilterBackend):
    """django-filter, plus a 400 for parameters that the view does not know."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> Any:
        filterset = self.get_filterset(request, queryset, view)
        known = ALWAYS | (set(filterset.filters) if filterset else set())
        if unknown := set(request.query_params) - known:
            raise ValidationError(
                {name: [f"Unknown filter; known are: {', '.join(sorted(known))}."] for name in unknown}
            )
        if filterset:
            _refuse_half_truths(request, filterset.filters)
        if any("\x00" in value for value in request.query_params.values()):
            raise ValidationError({"non_field_errors": ["A filter holds a NUL character."]})
        return super().filter_queryset(request, queryset, view)


def _refuse_half_truths(request: Request, filters: dict[str, Any]) -> None:
    """django-filter reads `maybe` as no filter at all."""
    for name, item in filters.items():
        if isinstance(item, BooleanFilter) and request.query_params.get(name, "true").lower() not in ("true", "false"):
            raise ValidationError({name: ["Must be true or false."]})
