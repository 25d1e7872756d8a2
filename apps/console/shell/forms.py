"""The base of the console's forms, and the fields and errors that several nouns share."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import Pool, Role, Tenant
from apps.quotas.models.pool import DEFAULT
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


def number(label: "str | StrPromise", *, most: int, help_text: "str | StrPromise", **more: Any) -> forms.IntegerField:
    """Return a field for a number from 1 on."""
    return forms.IntegerField(
        label=label,
        min_value=1,
        max_value=most,
        help_text=help_text,
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "numeric"}),
        **more,
    )


LOCAL = "%Y-%m-%dT%H:%M"


def moment(label: "str | StrPromise", *, help_text: "str | StrPromise", **more: Any) -> forms.DateTimeField:
    """Return a field for a moment, in UTC."""
    widget = forms.DateTimeInput(attrs={"class": "form-control", "type": "datetime-local"}, format=LOCAL)
    return forms.DateTimeField(label=label, help_text=help_text, widget=widget, input_formats=[LOCAL], **more)


class ServiceForm(forms.Form):
    """A form for a service, which may refuse it."""

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
    version = request.POST.get("version", "")
    return frozenset({int(version)} if version.isascii() and version.isdecimal() and len(version) < 10 else ())


def flatten(detail: Any) -> Iterator[str]:
    """Yield the API's error texts, however deeply nested."""
    if isinstance(detail, str):
        yield detail
    else:
        for item in detail.values() if isinstance(detail, dict) else detail:
            yield from flatten(item)


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
    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("A name by which you recognise it."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "train-7"}),
    )
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

    @property
    def chosen_tenant(self) -> Tenant | None:
        """The tenant selected in the form."""
        slug = self["tenant"].value()
        return next((tenant for tenant in self._mine if tenant.slug == slug), None)
