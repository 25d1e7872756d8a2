"""Kinds of fields that several forms have, and the API's own words about a field."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.functional import keep_lazy_text

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


def words(serializer: Any, name: str) -> str:
    """What the API says of the field, looked up in the reader's language when it is shown."""
    return _plain(serializer().fields[name].help_text)


@keep_lazy_text
def _plain(said: str) -> str:
    """Marks of code mean nothing on a page."""
    return said.replace("`", "")


def choice(label: "StrPromise", choices: Any, help_text: "str | StrPromise" = "", **more: Any) -> forms.ChoiceField:
    """One of several."""
    select = forms.Select(attrs={"class": "form-select"})
    return forms.ChoiceField(label=label, choices=choices, help_text=help_text, widget=select, **more)


def switch(label: "StrPromise", help_text: "str | StrPromise", **more: Any) -> forms.BooleanField:
    """Yes or no."""
    box = forms.CheckboxInput(attrs={"class": "form-check-input"})
    return forms.BooleanField(label=label, required=False, help_text=help_text, widget=box, **more)
