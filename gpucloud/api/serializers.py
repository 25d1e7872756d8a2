"""Serializers that refuse what they do not know."""

import copy
from functools import cache
from typing import Any

from rest_framework import serializers

# What a value must be in JSON. The framework would take 0 for "0" and for false, and "1" for 1.
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
    """What cannot be set is an error, and so is a value of another type: a misspelt limit must not become no limit."""

    def get_fields(self) -> dict[str, Any]:
        """A copy of each declared field; of one that holds others, with copies of these.

        The framework would make every field anew from its arguments, for each request, at ten times the price.
        """
        holds_others = (serializers.BaseSerializer, serializers.ListField, serializers.DictField)
        return {
            name: copy.deepcopy(field) if isinstance(field, holds_others) else copy.copy(field)
            for name, field in self._declared_fields.items()
        }

    @classmethod
    def document(cls, row: Any) -> dict[str, Any]:
        """What an answer shows of the row, where that is the same for every caller."""
        shown: dict[str, Any] = _reader(cls).to_representation(row)
        return shown

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            _refuse_names(self, data)
            _refuse_types(self, data)
        return super().to_internal_value(data)


@cache
def _reader(kind: type[Strict]) -> Strict:
    """One that is kept: reading leaves its fields as they are, and making them costs more than reading does."""
    return kind()


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
    """What the value must be, if it is not; null is the field's own business."""
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        return next(
            (f"a list, and each of it {said}" for item in value if (said := _mistyped(field.child, item))), None
        )
    for fields, kind, said in TYPES:
        if isinstance(field, fields):
            return None if value is None or type(value) is kind else said
    return None


class StrictInteger(serializers.IntegerField):
    """A JSON number without a fraction: "8192", 1.0 and true are mistakes, not numbers."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(super().to_internal_value(data))
