"""Allow-listed query filters: an unknown parameter is an error instead of an unfiltered list."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.db.models import CharField, Manager, Model, QuerySet, Subquery, Value
from django_filters.rest_framework import (
    BooleanFilter,
    CharFilter,
    ChoiceFilter,
    DjangoFilterBackend,
    Filter,
    FilterSet,
    IsoDateTimeFilter,
)
from django_filters.utils import translate_validation
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.views import APIView

# No time zone is further from UTC than fourteen hours.
MOST_OFFSET = timedelta(hours=16)
ALWAYS = {"cursor", "limit", "format"}


class Changed(FilterSet):
    """Filters for rows that record when they last changed."""

    updated_since = IsoDateTimeFilter(field_name="updated_at", lookup_expr="gte")


def filters_of(model: type[Model], *columns: str, base: type[FilterSet] = Changed, **more: str | Filter) -> Any:
    """Return the filters of a list: columns of the model, and more by name, a lookup such as `pool__name` or a filter.

    `base` has the filters that many lists share.
    """
    named = {name: CharFilter(field_name=item) if isinstance(item, str) else item for name, item in more.items()}
    meta = type("Meta", (), {"model": model, "fields": list(columns)})
    return type(f"{model.__name__}Filter", (base,), {**named, "Meta": meta})


class Constant(Value):
    """A text in the statement itself, of those that are allowed.

    As a parameter, a state would keep a prepared statement from the indexes of rows that are not released, and from the
    statistics of that state: PostgreSQL then reads a long history for a short list.
    """

    def __init__(self, text: str, allowed: Iterable[str]) -> None:
        if text not in allowed or not text.replace("_", "").replace("-", "").isalnum():
            raise ValueError(f"{text!r} is not one of {[*allowed]}")
        super().__init__(text, output_field=CharField())

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return the quoted text."""
        return f"'{self.value}'", []


class StateFilter(ChoiceFilter):
    """Rows in one state of a model."""

    def filter(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Filter rows by the state; return all rows if none is given."""
        if not value:
            return queryset
        return queryset.filter(**{str(self.field_name): Constant(value, dict(self.extra["choices"]))})


class Named(CharFilter):
    """A filter on the name of a related row.

    The name is looked up once, before the list: a join makes the database read the list in the wrong order.
    """

    def __init__(self, rows: Manager[Any], key: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows, self.key = rows, key

    def filter(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Filter rows by the related name; return all rows if no name is given."""
        if not value:
            return queryset
        named = self.rows.filter(**{self.key: value}).values("pk")[:1]
        return queryset.filter(**{str(self.field_name): Subquery(named)})


class StrictFilterBackend(DjangoFilterBackend):
    """A django-filter backend that answers 400 to parameters that the view does not declare."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: APIView) -> Any:
        # Most pages are asked for without a filter, and a set of filters is copied, with its form, for each request.
        if all(name in ALWAYS and value and "\x00" not in value for name, value in request.query_params.items()):
            return queryset
        kind = self.get_filterset_class(view, queryset)
        known = ALWAYS | set(kind.base_filters if kind else ())
        if unknown := set(request.query_params) - known:
            raise ValidationError(
                {name: [f"Unknown filter; known are: {', '.join(sorted(known))}."] for name in unknown}
            )
        filterset = (
            _only(kind, frozenset(request.query_params))(**self.get_filterset_kwargs(request, queryset, view))
            if kind
            else None
        )
        if filterset:
            _refuse_half_truths(request, filterset.filters)
            _refuse_strange_moments(filterset)
        if empty := [name for name, value in request.query_params.items() if not value and name in known]:
            # `?tenant=$TENANT` in a script that forgot to set the variable must not return every tenant's list.
            raise ValidationError({name: ["Is empty: leave it out."] for name in empty})
        if any("\x00" in value for value in request.query_params.values()):
            raise ValidationError({"non_field_errors": ["A filter holds a NUL character."]})
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            raise translate_validation(filterset.errors)
        return filterset.qs


@lru_cache(maxsize=1024)
def _only(kind: type[FilterSet], names: frozenset[str]) -> type[FilterSet]:
    """Return the filter set with the filters of these names only: each request copies all that its set has."""
    narrow: Any = type(kind.__name__, (kind,), {})
    narrow.base_filters = {name: item for name, item in kind.base_filters.items() if name in names}
    found: type[FilterSet] = narrow
    return found


def _refuse_half_truths(request: Request, filters: dict[str, Any]) -> None:
    """Refuse values such as `maybe` that django-filter silently treats as no filter."""
    for name, item in filters.items():
        if isinstance(item, BooleanFilter) and request.query_params.get(name, "true").lower() not in ("true", "false"):
            raise ValidationError({name: ["Must be true or false."]})


def _refuse_strange_moments(filterset: FilterSet) -> None:
    for name, value in filterset.form.cleaned_data.items() if filterset.is_valid() else ():
        if isinstance(value, datetime) and _strange(value):
            raise ValidationError({name: ["Not a moment that can be compared: write it in UTC, with Z."]})


def _strange(moment: datetime) -> bool:
    """Return True for an offset that PostgreSQL rejects (sixteen hours) or a year that Python cannot represent."""
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return True
    return abs(moment.utcoffset() or timedelta()) >= MOST_OFFSET
