"""Read-only fields of answers: one by one, or the columns of a model.

`null` says that the field may be null. Columns take their type, their choices and that from the model.
"""

from collections.abc import Callable
from typing import Any

from django.db import models
from rest_framework import serializers

Field = serializers.Field[Any, Any, Any, Any]


def _kind(field: type[Field]) -> Callable[..., Any]:
    def make(help_text: str | None = None, *, null: bool = False, **more: Any) -> Any:
        """Return the field. `more`: `source`, `default`."""
        if help_text is not None:
            more["help_text"] = help_text
        return field(read_only=True, **({"allow_null": True, **more} if null else more))

    return make


text, integer, number = map(_kind, (serializers.CharField, serializers.IntegerField, serializers.FloatField))
flag, time, uid = map(_kind, (serializers.BooleanField, serializers.DateTimeField, serializers.UUIDField))
json = _kind(serializers.JSONField)


def texts(help_text: str | None = None) -> Any:
    """Return a field of a list of texts."""
    return _kind(serializers.ListField)(help_text, child=serializers.CharField())


def choice(choices: Any, help_text: str | None = None, **more: Any) -> Any:
    """Return a field with one of these values."""
    return _kind(serializers.ChoiceField)(help_text, choices=choices, **more)


KINDS: list[tuple[type[Any], Callable[..., Any]]] = [
    (models.DateTimeField, time),
    (models.UUIDField, uid),
    (models.BooleanField, flag),
    (models.IntegerField, integer),
    (models.FloatField, number),
    (models.CharField, text),
    (models.JSONField, json),
]


class Columns(serializers.Field[Any, Any, Any, Any]):
    """Stand for the columns of a model, in this place of a `Strict` serializer; their names in one text."""

    def __init__(self, model: type[models.Model], names: str) -> None:
        super().__init__(read_only=True)
        self.model, self.names = model, names.split()

    def fields(self) -> dict[str, Any]:
        """Return a field for each column."""
        known = self.model._meta  # noqa: SLF001 - Django's own documented way
        return {name: _column_field(known.get_field(name)) for name in self.names}


def _column_field(column: Any) -> Any:
    if column.choices:
        return choice(column.choices, null=column.null)
    return next(kind for field, kind in KINDS if isinstance(column, field))(null=column.null)
