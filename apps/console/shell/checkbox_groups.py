"""Check boxes in groups: many small choices, each with a description."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django import forms

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Title, then value and label of each box.
Groups = Iterable[tuple["StrPromise", Iterable[tuple[str, "StrPromise | str"]]]]


def boxes(label: "StrPromise", groups: Groups, **more: Any) -> forms.MultipleChoiceField:
    """Return a field of check boxes in groups; `parts/boxes.html` shows it."""
    widget = forms.CheckboxSelectMultiple(attrs={"class": "form-check-input"})
    return forms.MultipleChoiceField(label=label, choices=list(groups), widget=widget, **more)


def group_boxes(field: forms.BoundField) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return the groups with the state of each box: `name`, `value`, `label`, `selected`, `id`."""
    shown = field.field.widget.optgroups(field.html_name, [str(one) for one in field.value() or []])
    return [
        (title, [box | {"id": f"{field.auto_id}_{at}_{number}"} for number, box in enumerate(options)])
        for at, (title, options, _) in enumerate(shown)
    ]
