"""Serializers that refuse what they do not know."""

from decimal import Decimal
from typing import Any

from rest_framework import serializers


class Strict(serializers.Serializer[Any]):
    """What cannot be set is an error: a misspelt limit must not be silently no limit."""

    def to_internal_value(self, data: Any) -> Any:
        known = [name for name, field in self.fields.items() if not field.read_only]
        if isinstance(data, dict) and (wrong := set(data).difference(known)):
            hint = f"known are: {', '.join(known)}."
            raise serializers.ValidationError(
                {
                    name: [f"Cannot be set; {hint}" if name in self.fields else f"Unknown field; {hint}"]
                    for name in sorted(wrong)
                }
            )
        return super().to_internal_value(data)


class StrictInteger(serializers.IntegerField):
    """A JSON number without a fraction: "8192", 1.0 and true are mistakes, not numbers."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(super().to_internal_value(data))


class StrictDecimal(serializers.DecimalField):
    """A decimal number as text, or a whole number: a JSON number with a fraction was a float on its way here."""

    default_error_messages = {"inexact": 'Write it as text, like "2.50": a JSON number with a fraction is not exact.'}

    def to_internal_value(self, data: Any) -> Decimal:
        if isinstance(data, bool | float) or not isinstance(data, int | str):
            self.fail("inexact")
        return Decimal(super().to_internal_value(data))
