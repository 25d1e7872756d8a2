"""Filters of lists, in the URL: search, conditions, rows of other models, flags."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from operator import and_, or_
from typing import TYPE_CHECKING, Any, Final

import django_filters
from django import forms
from django.db.models import Q, QuerySet
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.owner_filter import PLATFORM, administered_tenants
from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import VIA, Principal

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

    Label = StrPromise | str

# More names are typed, not chosen: thousands of them would be most of the page.
MOST_CHOICES: Final = 100
# More words do not narrow the rows further.
MOST_WORDS: Final = 6
ALL: Final = _("All")
CONTROL: Final = {"class": "form-control", "autocomplete": "off"}


def made_by(principal: Principal) -> Q:
    """Return the condition of what the reader made, in person or by a token."""
    return Q(created_by=principal.name) | Q(created_by__startswith=f"{principal.name}{VIA}")


class Search(django_filters.CharFilter):
    """A search: each word is a part of one of the fields."""

    def __init__(self, *fields: str, placeholder: "Label" = "") -> None:
        widget = forms.TextInput(attrs={"class": "form-control", "type": "search", "placeholder": placeholder})
        super().__init__(label=_("Find"), max_length=200, widget=widget)
        self.fields = fields

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the rows that have every word."""
        words = (value or "").split()[:MOST_WORDS]
        wanted = [reduce(or_, (Q(**{f"{name}__icontains": word}) for name in self.fields)) for word in words]
        return rows.filter(reduce(and_, wanted)) if wanted else rows


class Text(django_filters.CharFilter):
    """A text that a field holds in some form, such as its beginning."""

    def __init__(self, label: "Label", lookup: str, placeholder: "Label" = "") -> None:
        widget = forms.TextInput(attrs={**CONTROL, "placeholder": placeholder})
        super().__init__(label=label, max_length=255, widget=widget)
        self.lookup = lookup

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the rows that match."""
        return rows.filter(**{self.lookup: value}) if value else rows


class Choice(django_filters.ChoiceFilter):
    """One of several named conditions; `otherwise` applies while none is chosen.

    Conditions that depend on the time are functions.
    """

    def __init__(
        self,
        label: "Label",
        options: Mapping[str, tuple[Any, Any]],
        *,
        empty: "Label" = ALL,
        otherwise: Any = None,
    ) -> None:
        choices = [(value, title) for value, (title, _condition) in options.items()]
        super().__init__(
            label=label, choices=choices, empty_label=empty, widget=forms.Select(attrs={"class": "form-select"})
        )
        self.conditions = {value: condition for value, (_title, condition) in options.items()}
        self.otherwise = otherwise

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the rows under the condition."""
        condition = self.conditions[value] if value else self.otherwise
        if condition is None:
            return rows
        return rows.filter(condition() if callable(condition) else condition)


class Tick(forms.CheckboxInput):
    """A check box whose value is 1 or nothing: another value in the URL is an error, not a yes."""

    def __init__(self) -> None:
        super().__init__(attrs={"class": "form-check-input", "value": "1"}, check_test=lambda value: value == "1")

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        """Return the text as it is."""
        return data.get(name, "")

    def format_value(self, value: Any) -> str:
        """Return the value that is sent when it is checked."""
        return "1"


class Flag(django_filters.ChoiceFilter):
    """A condition that applies while the box is checked; one that depends on the reader is a function."""

    def __init__(self, label: "Label", condition: Any) -> None:
        super().__init__(label=label, choices=[("1", label)], widget=Tick())
        self.condition = condition

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the rows under the condition."""
        if not value:
            return rows
        return rows.filter(self.condition(self.parent.principal) if callable(self.condition) else self.condition)


class NameWidget(forms.Select):
    """A choice while there are few names, a text field otherwise."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> Any:
        """Return the HTML; one query."""
        few = list(islice(iter(self.choices), MOST_CHOICES + 2))
        if len(few) > MOST_CHOICES:
            return forms.TextInput(attrs=CONTROL).render(name, value, attrs, renderer)
        self.choices = few
        return super().render(name, value, attrs, renderer)


class Named(django_filters.ModelChoiceFilter):
    """A row of another model, by its name."""

    def __init__(
        self,
        label: "Label",
        path: str,
        rows: Callable[[Principal], QuerySet[Any]],
        key: str = "name",
    ) -> None:
        super().__init__(
            label=label,
            field_name=path,
            queryset=lambda request: rows(request.principal),
            to_field_name=key,
            empty_label=_("All"),
            widget=NameWidget(attrs={"class": "form-select"}),
        )


def pools(path: str = "pool") -> Named:
    """Return a filter by pool."""
    return Named(_("Pool"), path, lambda principal: Pool.objects.order_by("name"))


def tenants(path: str = "tenant") -> Named:
    """Return a filter by tenant, of those that the reader sees."""
    return Named(_("Tenant"), path, Tenant.objects.visible_to, "slug")


class Owner(django_filters.CharFilter):
    """The owner of a row: a tenant that the reader administers, or the platform."""

    field_class = forms.ChoiceField

    def __init__(self) -> None:
        super().__init__(label=_("Owner"), widget=NameWidget(attrs={"class": "form-select"}))

    @property
    def field(self) -> Any:
        """The field with the reader's own choices."""
        principal: Principal = self.parent.principal

        def choices() -> Iterator[tuple[str, str]]:
            yield "", gettext("All")
            if principal.is_operator:
                yield PLATFORM, gettext("the platform")
            slugs = administered_tenants(principal).values_list("slug", flat=True)
            # As many as the widget needs to see that they are too many for a choice; and the chosen one.
            few, chosen = list(slugs[: MOST_CHOICES + 1]), self.parent.data.get(self.field_name, "")
            if chosen not in few and chosen.isprintable():
                few += slugs.filter(slug=chosen)
            yield from ((slug, slug) for slug in few)

        return forms.ChoiceField(label=self.label, required=False, widget=self.extra["widget"], choices=choices)

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the owner's rows."""
        if not value:
            return rows
        return rows.filter(tenant=None) if value == PLATFORM else rows.filter(tenant__slug=value)


class Labelled(Text):
    """A label in a JSON field: `zone`, or `zone=a`."""

    def __init__(self, path: str) -> None:
        super().__init__(_("Label"), path, "zone=a")

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the rows with the label."""
        name, equals, wanted = (value or "").partition("=")
        if not name:
            return rows
        lookup = {f"{self.lookup}__contains": {name: wanted}} if equals else {f"{self.lookup}__has_key": name}
        return rows.filter(**lookup)


class ListFilter(django_filters.FilterSet):
    """The filter set of a list. A wrong value does not filter; `wrong` says so.

    `folded` are the filters that the page hides while they are empty.
    """

    folded: tuple[str, ...] = ()

    @property
    def principal(self) -> Principal:
        """The reader."""
        principal: Principal = self.request.principal
        return principal

    def filter_queryset(self, queryset: Any) -> Any:
        """Return the rows that match; a filter without a valid value applies its default."""
        for name, item in self.filters.items():
            queryset = item.filter(queryset, self.form.cleaned_data.get(name))
        return queryset

    @property
    def wrong(self) -> list[str]:
        """The errors in words, each with its filter."""
        errors: Iterable[tuple[str, Any]] = self.form.errors.items()
        return [f"{self.form[name].label}: {' '.join(texts)}" for name, texts in errors]

    @property
    def narrows(self) -> bool:
        """True if the URL sets a filter."""
        return any(self.data.get(name) for name in self.filters)

    @property
    def usual(self) -> list[forms.BoundField]:
        """The fields that are always visible."""
        return [field for field in self.form if field.name not in self.folded]

    @property
    def more(self) -> list[forms.BoundField]:
        """The folded fields."""
        return [field for field in self.form if field.name in self.folded]

    @property
    def more_is_open(self) -> bool:
        """True if one of them has a value."""
        return any(self.data.get(name) for name in self.folded)
