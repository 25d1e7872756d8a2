"""The base of the console's forms, and the fields and errors that several nouns share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from django import forms
from django.db.models import Max
from django.http import HttpRequest
from django.utils.functional import lazy
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.amounts import MemoryField
from apps.nodes.models import Gpu
from apps.quotas.models import Pool, Role, Tenant
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.pool import DEFAULT
from apps.quotas.models.row import MOST_NAME
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError
from gpucloud.web.tags import mib, percent

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# The field beside which a refusal is shown.
FIELD_OF_RESOURCE: Final[Mapping[str, str]] = {
    "core_percent": "core_request",
    "memory_mib": "memory_mib",
    "vgpus": "gpu_count",
    "gpus": "gpu_count",
}


def number(
    label: "str | StrPromise", *, most: int, help_text: "str | StrPromise", least: int = 1, **more: Any
) -> forms.IntegerField:
    """Return a field for a whole number."""
    return forms.IntegerField(
        label=label,
        min_value=least,
        max_value=most,
        help_text=help_text,
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "numeric"}),
        **more,
    )


def memory(**more: Any) -> MemoryField:
    """Return a field for a claim's memory."""
    help_text = _("On each GPU; GiB unless it has a unit.")
    return MemoryField(label=_("Memory"), most=MOST[ClaimField.MEMORY_MIB], help_text=help_text, **more)


LOCAL = "%Y-%m-%dT%H:%M"


def moment(label: "str | StrPromise", *, help_text: "str | StrPromise" = "", **more: Any) -> forms.DateTimeField:
    """Return a field for a moment, in the reader's time zone."""
    widget = forms.DateTimeInput(attrs={"class": "form-control", "type": "datetime-local"}, format=LOCAL)
    return forms.DateTimeField(label=label, help_text=zoned(help_text), widget=widget, input_formats=[LOCAL], **more)


def _zoned(text: "str | StrPromise") -> str:
    """Return a help text with the reader's time zone."""
    return f"{text} {gettext('Time zone: {0}.').format(get_current_timezone_name())}".strip()


# Always lazy, even for an empty text: the zone is that of the reader of the page.
zoned = lazy(_zoned, str)


def name_field(example: str, help_text: "str | StrPromise" = "", **more: Any) -> forms.CharField:
    """Return a field for a name."""
    attrs = {"class": "form-control", "autocomplete": "off", "placeholder": example}
    common: dict[str, Any] = {"label": _("Name"), "max_length": MOST_NAME, "help_text": help_text}
    return forms.CharField(widget=forms.TextInput(attrs=attrs), **common | more)


class Group(NamedTuple):
    """Fields that a form shows together under a title; folded, unless one of them is wrong or changed."""

    title: "StrPromise | str"
    names: Sequence[str]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A group as the page shows it."""

    title: "StrPromise | str"
    fields: list[forms.BoundField]
    folded: bool = False
    is_open: bool = False


class ServiceForm(forms.Form):
    """A form for a service, which may refuse it."""

    groups: ClassVar[Sequence[Group]] = ()

    @property
    def sections(self) -> Iterator[Section]:
        """The visible fields: first those of no group, then the groups."""
        grouped = {name for group in self.groups for name in group.names}
        yield Section("", [field for field in self.visible_fields() if field.name not in grouped])
        changed = set(self.changed_data) | set(self.errors) if self.is_bound else set()
        for group in self.groups:
            fields = [self[name] for name in group.names if name in self.fields]
            yield Section(group.title, fields, group.folded, not changed.isdisjoint(group.names))

    def refuse(self, error: GpucloudError) -> None:
        """Show a refusal beside its field."""
        if shortages := error.facts.get("shortages"):
            # Each short resource is named beside its own field.
            for item in shortages:
                named = FIELD_OF_RESOURCE.get(str(item["resource"]))
                self.add_error(named if named in self.fields else None, gettext(item["detail"]))
            return
        field = FIELD_OF_RESOURCE.get(str(error.facts.get("resource")))
        if error.code == "limit-below-request":
            field = "core_limit"
        self.add_error(field if field in self.fields else None, describe_error(error))


def describe_error(error: GpucloudError) -> str:
    """Return the error in words for a person; without the GPU's long name, which is on the page."""
    # For a reservation's room, or room that others lend, the error's own sentence says that instead.
    if error.code == "no-room" and "core_free" in error.facts:
        text = gettext("{0}: {1} core and {2} are free there, besides what the claim holds. Nothing was changed.")
        core, memory = percent(error.facts["core_free"]), mib(error.facts["memory_free_mib"])
        return text.format(gettext(error.title), core, memory)
    return f"{gettext(error.title)}. {gettext(error.detail)}"


def posted_versions(request: HttpRequest) -> frozenset[int]:
    """Return the version of a row that its reader saw, as a form posts it; empty for an invalid one."""
    return parse_version(request.POST.get("version", ""))


def parse_version(text: str) -> frozenset[int]:
    """Return the version as a set for the service; empty, which matches no row, if it is invalid."""
    return frozenset({int(text)} if text.isascii() and text.isdecimal() and len(text) < 10 else ())


def flatten(detail: Any) -> Iterator[str]:
    """Yield the API's error texts, however deeply nested."""
    if isinstance(detail, str):
        yield detail
    else:
        for item in detail.values() if isinstance(detail, dict) else detail:
            yield from flatten(item)


class VersionedForm(ServiceForm):
    """A form that changes a row, with the version that its reader saw."""

    version = forms.CharField(required=False, widget=forms.HiddenInput)

    @property
    def versions(self) -> frozenset[int] | None:
        """The version for the service; None without one."""
        version = self.cleaned_data["version"]
        return parse_version(version) if version else None

    def changes_of(self, row: Any, names: Sequence[str]) -> dict[str, Any]:
        """Return the named fields that differ from the row, for the service."""
        return {name: self.cleaned_data[name] for name in names if self.cleaned_data[name] != getattr(row, name)}


class TenantForm(ServiceForm):
    """The tenant, name and pool of a new claim or reservation."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        to_field_name="slug",
        empty_label=_("Choose one"),
        help_text=_("The tenant whose quota is charged."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    name = name_field("train-7", _("A name by which you recognise it."))
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        help_text=_("The pool whose nodes run it."),
        empty_label=None,
        widget=forms.Select(attrs={"class": "form-select"}),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        mine = Tenant.objects.visible_to(principal)
        if not principal.is_operator:
            mine = mine.filter(pk__in=principal.with_role(Role.MEMBER))
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = self._mine = mine
        self.may_ask = bool(mine)
        if len(mine) == 1 and not self.initial.get("tenant"):
            self.initial["tenant"] = mine[0].slug
        self.fields["pool"].initial = DEFAULT
        self._bound_memory()

    def _bound_memory(self) -> None:
        """Bound the memory by the largest GPU of the chosen pool; a pool without GPUs has the API's own bound."""
        field = self.fields.get("memory_mib")
        if isinstance(field, MemoryField):
            gpus = Gpu.objects.filter(present=True, node__pool__name=self["pool"].value() or DEFAULT)
            field.most = gpus.aggregate(most=Max("memory_mib"))["most"] or field.most

    @property
    def chosen_tenant(self) -> Tenant | None:
        """The tenant selected in the form."""
        slug = self["tenant"].value()
        return next((tenant for tenant in self._mine if tenant.slug == slug), None)
