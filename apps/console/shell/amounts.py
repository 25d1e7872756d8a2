"""Fields for amounts: memory with its unit, and amounts of a resource that may be unlimited."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django import forms
from django.core.exceptions import ValidationError
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.resource import IN_MIB, MOST_AMOUNT

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Digits for the largest amount in MiB; after the point ten: the smallest part of a GiB that is a whole MiB has as many.
MEMORY: Final = re.compile(r"(\d{1,16}(?:[.,]\d{1,10})?)\s*(?:([MGT])(?:iB?)?)?", re.IGNORECASE)
MIB_OF: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}
NOT_MEMORY: Final = _("Enter memory such as 16 GiB or 512 MiB.")


def parse_memory(text: str) -> int:
    """Return MiB; a number without a unit is GiB. Raises ValidationError."""
    found = MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValidationError(NOT_MEMORY)
    size = Decimal(found[1].replace(",", ".")) * MIB_OF[(found[2] or "G").upper()]
    if size != size.to_integral_value():
        raise ValidationError(_("Enter whole MiB."))
    return int(size)


def memory_text(mib: int) -> str:
    """Return MiB as one types them: in GiB, unless that has more than two digits after the point."""
    if mib % 1024 and (100 * mib) % 1024:
        return f"{mib} MiB"
    return f"{Decimal(mib) / 1024:f} GiB"


def amount_text(amount: int, resource: str) -> str:
    """Return an amount of a resource as one types it."""
    return memory_text(amount) if resource in IN_MIB else str(amount)


class MemoryField(forms.CharField):
    """Memory in MiB, typed and shown with its unit."""

    def __init__(self, *, least: int = 1, most: int, **kwargs: Any) -> None:
        widget = forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "16 GiB"})
        super().__init__(widget=widget, max_length=40, **kwargs)
        self.least, self.most = least, most

    def to_python(self, value: Any) -> Any:
        """Return MiB; None if it is empty."""
        text = super().to_python(value)
        return parse_memory(text) if text else None

    def validate(self, value: Any) -> None:
        """Check the bounds."""
        if value is None:
            if self.required:
                raise ValidationError(self.error_messages["required"])
            return
        if value < self.least:
            raise ValidationError(gettext("Must be at least {0}.").format(memory_text(self.least)))
        if value > self.most:
            raise ValidationError(gettext("Must be at most {0}.").format(memory_text(self.most)))

    def run_validators(self, value: Any) -> None:
        """Skip the checks of a text: `validate` has checked the number."""

    def prepare_value(self, value: Any) -> Any:
        """Return the text of the number."""
        return memory_text(value) if isinstance(value, int) else value


class Typed(NamedTuple):
    """An amount as a form has it: its text, and whether the box of no limit is checked."""

    text: str
    unlimited: bool


class AmountInput(forms.TextInput):
    """A text field with its unit, and a check box for no limit."""

    unlimited: "StrPromise | str | None" = None
    unit: str = ""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> Any:
        """Return the text field with unit and box."""
        typed = value if isinstance(value, Typed) else Typed("" if value is None else str(value), unlimited=False)
        shown = {"input": super().render(name, typed.text, attrs, renderer), "name": name, "checked": typed.unlimited}
        return render_to_string("parts/amount.html", shown | {"unit": self.unit, "unlimited": self.unlimited})

    def value_from_datadict(self, data: Mapping[str, Any], files: Any, name: str) -> Typed:
        """Return what was typed and whether the box is checked."""
        return Typed(str(data.get(name, "")).strip(), bool(data.get(f"{name}_unlimited")))


class AmountField(forms.Field):
    """An amount of the field's `resource`, memory with its unit; None is no limit.

    With `unlimited`, the label of its check box, an empty field is an error: no limit is said explicitly.
    """

    widget = AmountInput

    def __init__(
        self, *, unlimited: "StrPromise | None" = None, least: int = 0, most: int = MOST_AMOUNT, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.unlimited, self.least, self.most, self.resource = unlimited, least, most, ""
        self.widget.unlimited = unlimited
        self.widget.attrs |= {"class": "form-control", "autocomplete": "off", "inputmode": "decimal"}

    def of(self, resource: str) -> None:
        """Read and show amounts of this resource."""
        self.resource = resource
        self.widget.unit = "%" if resource.startswith("core") else ""

    def clean(self, value: Any) -> int | None:
        """Return the amount, in MiB for memory."""
        if value.unlimited and self.unlimited is not None:
            if value.text:
                raise ValidationError(gettext("Enter an amount or choose “{0}”, not both.").format(self.unlimited))
            return None
        if value.text:
            return self._checked(value.text)
        if self.unlimited is not None:
            raise ValidationError(gettext("Enter an amount, or choose “{0}”.").format(self.unlimited))
        if self.required:
            raise ValidationError(self.error_messages["required"])
        return None

    def _checked(self, text: str) -> int:
        if self.resource in IN_MIB:
            number = parse_memory(text)
        elif text.isascii() and text.isdecimal():
            # Longer ones are above every bound, and slow to convert.
            number = int(text[:20])
        else:
            raise ValidationError(_("Enter a whole number."))
        if number < self.least:
            raise ValidationError(gettext("Must be at least {0}.").format(self._shown(self.least)))
        if number > self.most:
            raise ValidationError(gettext("Must be at most {0}.").format(self._shown(self.most)))
        return number

    def _shown(self, number: int) -> str:
        return amount_text(number, self.resource)

    def prepare_value(self, value: Any) -> Any:
        """Return the text; a present value of None checks the box."""
        if isinstance(value, int):
            return self._shown(value)
        return Typed("", unlimited=True) if value is None and self.unlimited is not None else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether it differs from the present value; a wrong one does."""
        try:
            return bool(self.clean(data) != initial)
        except ValidationError:
            return True
