"""Serializers that refuse what they do not know."""

from typing import Any

from rest_framework import serializers


class Strict(serializers.Serializer[Any]):
    """An unknown field is an error: a misspelt limit must not be silently no limit."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := set(data) - set(self.fields)):
            known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
            raise serializers.ValidationError(
                {name: [f"Unknown field; known are: {known}."] for name in sorted(unknown)}
            )
        return super().to_internal_value(data)


class StrictInteger(serializers.IntegerField):
    """A JSON number without a fraction: "8192", 1.0 and true are mistakes, not numbers."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(super().to_internal_value(data))
