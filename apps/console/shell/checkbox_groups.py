"""Check boxes in groups: many small choices, each with a word about it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django import forms

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Title, then value and word of each box.
Groups = Iterable[tuple["StrPromise", Iterable[tuple[str, "StrPromise | str"]]]]


def boxes(label: "StrPromise", groups: Groups, **more: Any) -> forms.MultipleChoiceField:
    """A field of check boxes in groups; `parts/boxes.html` shows it."""
    widget = forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"})
    return forms.MultipleChoiceField(label=label, choices=list(groups), widget=widget, **more)


def grouped(field: forms.BoundField) -> list[tuple[Any, list[dict[str, Any]]]]:
    """The groups with the boxes of each as they stand: `name`, `value`, `label`, `selected`, `id`."""
    shown = field.field.widget.optgroups(field.html_name, [str(one) for one in field.value() or []])
    return [
        (title, [box | {"id": f"{field.auto_id}_{at}_{number}"} for number, box in enumerate(options)])
        for at, (title, options, _) in enumerate(shown)
    ]
