"""Serializers that reject unknown fields and wrong types."""

import copy
from functools import cache
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request

from gpucloud.api.shown import Columns
from gpucloud.fastpath import documents

# The JSON type of each kind of field. The framework would accept "0" and false as 0, and 1 as "1".
TYPES: list[tuple[tuple[type[serializers.Field[Any, Any, Any, Any]], ...], type, str]] = [
    ((serializers.BooleanField,), bool, "true or false"),
    ((serializers.IntegerField,), int, "a whole number"),
    (
        (
            serializers.CharField,
            serializers.ChoiceField,
            serializers.DateTimeField,
            serializers.DateField,
            serializers.DecimalField,
            serializers.SlugRelatedField,
        ),
        str,
        "a string",
    ),
]


class Strict(serializers.Serializer[Any]):
    """A serializer that rejects unknown fields and wrong types: a misspelt limit must not become no limit."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Put columns in their places; `from_` and `class_` are fields whose names are keywords of Python."""
        super().__init_subclass__(**kwargs)
        found: dict[str, Any] = {}
        for name, field in cls._declared_fields.items():
            found.pop(name.rstrip("_"), None)
            found.update(field.fields() if isinstance(field, Columns) else {name.rstrip("_"): field})
        cls._declared_fields = found

    def get_fields(self) -> dict[str, Any]:
        """Return a shallow copy of each declared field, and of nested fields.

        The framework would build each field from its arguments for each request, at ten times the cost.
        """
        holds_others = (serializers.BaseSerializer, serializers.ListField, serializers.DictField)
        return {
            name: copy.deepcopy(field) if isinstance(field, holds_others) else copy.copy(field)
            for name, field in self._declared_fields.items()
        }

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Return the row's document: what the framework would return, for less (`gpucloud.fastpath.documents`)."""
        shown: dict[str, Any] = _compiled(type(self))(self, instance)
        return shown

    to_representation.is_compiled = True  # type: ignore[attr-defined]

    @classmethod
    def document(cls, row: Any) -> dict[str, Any]:
        """Return the part of a row's representation that is the same for every caller."""
        shown: dict[str, Any] = _reader(cls).to_representation(row)
        return shown

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            _refuse_names(self, data)
            _refuse_types(self, data)
        return super().to_internal_value(data)


class Question(Strict):
    """The parameters of a query, in which numbers and switches come as text."""

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        """Return the query's parameters. Raises ValidationError."""
        question = cls(data=request.query_params.dict())
        question.is_valid(raise_exception=True)
        values: dict[str, Any] = question.validated_data
        return values

    @classmethod
    def parameters(cls) -> list[OpenApiParameter]:
        """Return the parameters for the API's document."""
        return [_parameter(name, field) for name, field in cls().fields.items()]

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value({name: self._typed(name, text) for name, text in data.items()})

    def _typed(self, name: str, text: str) -> Any:
        field = self.fields.get(name)
        if isinstance(field, serializers.BooleanField):
            return {"true": True, "false": False}.get(text.lower(), text)
        # The interpreter refuses numbers of thousands of digits.
        is_number = text.isascii() and text.isdecimal() and len(text) < 16
        return int(text) if is_number and isinstance(field, serializers.IntegerField) else text


QUERY_TYPES: list[tuple[Any, OpenApiTypes]] = [
    (serializers.BooleanField, OpenApiTypes.BOOL),
    (serializers.IntegerField, OpenApiTypes.INT),
    (serializers.DateTimeField, OpenApiTypes.DATETIME),
    (serializers.UUIDField, OpenApiTypes.UUID),
    (serializers.Field, OpenApiTypes.STR),
]


def _parameter(name: str, field: Any) -> OpenApiParameter:
    kind = next(found for fields, found in QUERY_TYPES if isinstance(field, fields))
    choices = list(field.choices) if isinstance(field, serializers.ChoiceField) else None
    return OpenApiParameter(name, kind, enum=choices, description=str(field.help_text or ""))


def either(name: str, *kinds: Any) -> PolymorphicProxySerializer:
    """Return the answer of a change or of its preview, which both are 200."""
    return PolymorphicProxySerializer(component_name=name, serializers=kinds, resource_type_field_name=None)


@cache
def _reader(kind: type[Strict]) -> Strict:
    """Return a cached serializer: reading does not change its fields, and building them costs more than reading."""
    return kind()


@cache
def _compiled(kind: type[Strict]) -> Any:
    """Return the class's reader of rows."""
    return documents.reader(kind, serializers.Serializer.to_representation)


def _refuse_names(serializer: Strict, data: dict[str, Any]) -> None:
    known = [name for name, field in serializer.fields.items() if not field.read_only]
    if wrong := set(data).difference(known):
        hint = f"known are: {', '.join(known)}."
        raise serializers.ValidationError(
            {
                name: [f"Cannot be set; {hint}" if name in serializer.fields else f"Unknown field; {hint}"]
                for name in sorted(wrong)
            }
        )


def _refuse_types(serializer: Strict, data: dict[str, Any]) -> None:
    if wrong := {name: said for name, value in data.items() if (said := _mistyped(serializer.fields[name], value))}:
        raise serializers.ValidationError({name: [f"Must be {said}."] for name, said in wrong.items()})


def _mistyped(field: Any, value: Any) -> str | None:
    """Return the type that the value must have, if it has another one; the field itself handles null."""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        return next(
            (f"a list, and each of it {said}" for item in value if (said := _mistyped(field.child, item))), None
        )
    if isinstance(field, serializers.ChoiceField) and value not in (None, ""):
        known = str(value) in field.choice_strings_to_values
        return None if known else f"one of: {', '.join(map(str, field.choices))}"
    for fields, kind, said in TYPES:
        if isinstance(field, fields):
            return None if value is None or type(value) is kind else said
    return None


class StrictInteger(serializers.IntegerField):
    """A JSON number without a fraction; "8192", 1.0 and true are rejected."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(super().to_internal_value(data))
