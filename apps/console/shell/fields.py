"""Field constructors that several forms use, and the API's own help texts."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.functional import keep_lazy_text

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Title, then value and label of each box.
BoxGroups = Iterable[tuple["StrPromise", Iterable[tuple[str, "StrPromise | str"]]]]


def api_help(serializer: Any, name: str) -> str:
    """Return the API's help text of the field, translated when it is shown."""
    return _plain(serializer().fields[name].help_text)


@keep_lazy_text
def _plain(text: str) -> str:
    """Remove marks of code, which mean nothing on a page."""
    return text.replace("`", "")


def choice(label: "StrPromise", choices: Any, help_text: "str | StrPromise" = "", **more: Any) -> forms.ChoiceField:
    """Return a field for one of several values."""
    select = forms.Select(attrs={"class": "form-select"})
    return forms.ChoiceField(label=label, choices=choices, help_text=help_text, widget=select, **more)


def radios(label: "StrPromise", choices: Any, **more: Any) -> forms.ChoiceField:
    """Return a field for one of a few values whose labels are sentences; `parts/radios.html` shows it."""
    widget = forms.RadioSelect(attrs={"class": "form-check-input"})
    return forms.ChoiceField(label=label, choices=choices, widget=widget, **more)


def switch(label: "StrPromise", help_text: "str | StrPromise", **more: Any) -> forms.BooleanField:
    """Return a field for yes or no."""
    box = forms.CheckboxInput(attrs={"class": "form-check-input"})
    return forms.BooleanField(label=label, required=False, help_text=help_text, widget=box, **more)


def boxes(label: "StrPromise", groups: BoxGroups, **more: Any) -> forms.MultipleChoiceField:
    """Return a field of check boxes in groups; `parts/boxes.html` shows it."""
    widget = forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"})
    return forms.MultipleChoiceField(label=label, choices=list(groups), widget=widget, **more)


def one_of(label: "StrPromise", rows: Any, key: str, help_text: "str | StrPromise" = "", **more: Any) -> Any:
    """Return a field for one row, named by its unique field `key`."""
    select = forms.Select(attrs={"class": "form-select"})
    return forms.ModelChoiceField(
        rows, label=label, to_field_name=key, help_text=help_text, widget=select, **{"empty_label": None, **more}
    )
