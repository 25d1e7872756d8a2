"""Forms of the pages. They say what is a number; the services say what may be done."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.validators import RegexValidator
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ValidationError

from apps.nodes.api.serializers import LABEL_NAME, LABEL_WRONG, LabelsField
from apps.quotas.models import Pool, Role, SharingPolicy, Tenant
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.pool import DEFAULT
from apps.quotas.principals import Principal
from apps.scheduling.api.serializers import LATEST_START, MAX_MEMORY_MIB
from apps.scheduling.models import ClaimState
from apps.scheduling.models.claim import MOST_WEIGHT
from gpucloud.errors import GpucloudError
from gpucloud.web.badges import badge
from gpucloud.web.tags import mib, percent

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Under which field a refusal is shown.
FIELD_OF_RESOURCE: Final[Mapping[str, str]] = {
    "core_percent": "core_request",
    "memory_mib": "memory_mib",
    "vgpus": "gpu_count",
    "gpus": "gpu_count",
}


def number(label: "str | StrPromise", *, most: int, help_text: "str | StrPromise", **more: Any) -> forms.IntegerField:
    """A field for a number from 1 on."""
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
    """A field for a moment, in UTC."""
    widget = forms.DateTimeInput(attrs={"class": "form-control", "type": "datetime-local"}, format=LOCAL)
    return forms.DateTimeField(label=label, help_text=help_text, widget=widget, input_formats=[LOCAL], **more)


class ServiceForm(forms.Form):
    """A form whose work a service does and may refuse."""

    # Errors are read out with the field, and a wrong field says that it is wrong.
    def refuse(self, error: GpucloudError) -> None:
        """Show a refusal where it belongs."""
        field = FIELD_OF_RESOURCE.get(str(error.facts.get("resource")))
        if error.code == "limit-below-request":
            field = "core_limit"
        self.add_error(field if field in self.fields else None, in_words(error))


def in_words(error: GpucloudError) -> str:
    """The fact as a person reads it; a GPU's long name is on the page already."""
    # Where the room is a reservation's, or others' to lend, the sentence says that instead.
    if error.code == "no-room" and "core_free" in error.facts:
        said = gettext("{0}: {1} core and {2} are free there, besides what the claim holds. Nothing was changed.")
        core, memory = percent(error.facts["core_free"]), mib(error.facts["memory_free_mib"])
        return said.format(gettext(error.title), core, memory)
    return f"{gettext(error.title)}. {gettext(error.detail)}"


class ResizeForm(ServiceForm):
    """The three numbers that move live. Only what the person changed is sent: someone else may have moved the rest."""

    core_request = number(
        _("Core request"), most=100, help_text=_("Percent of the GPU, guaranteed."), show_hidden_initial=True
    )
    core_limit = number(
        _("Core limit"), most=100, help_text=_("Percent, the ceiling when others are idle."), show_hidden_initial=True
    )
    memory_mib = number(_("Memory"), most=MAX_MEMORY_MIB, help_text=_("MiB on each GPU."), show_hidden_initial=True)

    @property
    def changed(self) -> dict[str, Any]:
        """What is to be changed, for the service."""
        return {name: self.cleaned_data[name] for name in self.changed_data}


def seen(request: HttpRequest) -> frozenset[int]:
    """The version of a row that its reader saw, as a form posts it. What is no version is none that it ever had."""
    version = request.POST.get("version", "")
    return frozenset({int(version)} if version.isascii() and version.isdecimal() and len(version) < 10 else ())


def flat(detail: Any) -> Iterator[str]:
    """The API's words about what is wrong, however deep they lie."""
    if isinstance(detail, str):
        yield detail
    else:
        for item in detail.values() if isinstance(detail, dict) else detail:
            yield from flat(item)


LABEL_CHECK = RegexValidator(LABEL_NAME, LABEL_WRONG)


def label(name: "StrPromise", help_text: "StrPromise") -> forms.CharField:
    """A field for a label among the tenant's claims."""
    widget = forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"})
    return forms.CharField(
        label=name, help_text=help_text, required=False, max_length=63, widget=widget, validators=[LABEL_CHECK]
    )


class MoreForm(ServiceForm):
    """What only some claims say; on the page it is folded until one of these says something."""

    priority = forms.IntegerField(
        label=_("Priority"),
        required=False,
        min_value=-1000,
        max_value=1000,
        help_text=_("Higher goes first in the queue; 0 unless given."),
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    time_limit_minutes = number(
        _("Time limit"),
        most=MOST[ClaimField.TIME_LIMIT_SECONDS] // 60,
        required=False,
        help_text=_("Minutes after which it is released. With one it may start before claims that wait for more room."),
    )
    start_at = moment(_("Not before"), required=False, help_text=_("In UTC; it waits until then."))
    affinity = label(_("Together with"), _("A label: your tenant’s claims that have it share a GPU."))
    anti_affinity = label(_("Apart from"), _("A label: your tenant’s claims that have it never share a GPU."))
    exclusion = label(_("Alone with"), _("A label: its GPUs carry only your tenant’s claims that have it."))
    node_selector = forms.CharField(
        label=_("Nodes with labels"),
        required=False,
        max_length=2000,
        help_text=_("All of them, such as zone=a, net=ib."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "zone=a, net=ib"}),
    )

    @property
    def usual(self) -> list[forms.BoundField]:
        """The fields that are always seen."""
        return [field for field in self if field.name not in MoreForm.base_fields]

    @property
    def more(self) -> list[forms.BoundField]:
        """The folded ones."""
        return [field for field in self if field.name in MoreForm.base_fields]

    @property
    def more_is_open(self) -> bool:
        """Where one of them says something, or is wrong."""
        return self.is_bound and any(field.data or field.errors for field in self.more)

    def clean_node_selector(self) -> dict[str, str]:
        """`zone=a, net=ib` by name, as the API takes it."""
        words = [word.strip().partition("=") for word in self.cleaned_data["node_selector"].split(",") if word.strip()]
        if not all(equals for _, equals, _ in words):
            raise forms.ValidationError(_("Write name=value, and commas between them: zone=a, net=ib."))
        try:
            labels: dict[str, str] = LabelsField().run_validation(
                {name.strip(): value.strip() for name, _, value in words}
            )
        except ValidationError as error:
            raise forms.ValidationError(str(next(iter(flat(error.detail))))) from error
        return labels

    def clean_start_at(self) -> datetime | None:
        """The API's own rule."""
        start_at: datetime | None = self.cleaned_data["start_at"]
        if start_at is not None and start_at > timezone.now() + LATEST_START:
            raise forms.ValidationError(gettext("Must be within {0} days.").format(LATEST_START.days))
        return start_at

    @property
    def asked_more(self) -> dict[str, Any]:
        """For the service: what is said, so that the tenant's defaults count for the rest."""
        said = {name: self.cleaned_data[name] for name in MoreForm.base_fields if self.cleaned_data[name]}
        if minutes := said.pop("time_limit_minutes", None):
            said["time_limit_seconds"] = 60 * minutes
        return said


class TenantForm(ServiceForm):
    """What is asked for a tenant: who bears it, what it is called, where it may lie."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        to_field_name="slug",
        empty_label=_("Choose one"),
        help_text=_("Whose quota bears it."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        help_text=_("What you will recognise it by."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "train-7"}),
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        help_text=_("Which nodes may carry it."),
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
        """The tenant that stands in the form."""
        said = self["tenant"].value()
        return next((tenant for tenant in self._mine if tenant.slug == said), None)


class ClaimForm(MoreForm, TenantForm):
    """A new claim: what most claims need, and, folded, what some do; the API has a few fields more."""

    gpu_count = number(_("GPUs"), most=64, help_text=_("How many, each with the same share."), initial=1)
    core_request = number(_("Core request"), most=100, help_text=_("Percent of each GPU, guaranteed."), initial=25)
    core_limit = number(
        _("Core limit"), most=100, help_text=_("Percent, the ceiling; the request unless given."), required=False
    )
    memory_mib = number(_("Memory"), most=MAX_MEMORY_MIB, help_text=_("MiB on each GPU."), initial=4096)
    weight = number(_("Weight"), most=MOST_WEIGHT, help_text=_("Its part, among those that want the GPU."), initial=1)
    best_effort = forms.BooleanField(
        label=_("Best effort"),
        required=False,
        help_text=_("It gets only the compute that the other claims of its GPU leave."),
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, principal=principal, **kwargs)
        self._keep_where_used("weight", SharingPolicy.WEIGHTED)
        self._keep_where_used("best_effort", SharingPolicy.PREEMPT)

    def _keep_where_used(self, name: str, policy: SharingPolicy) -> None:
        """A field that only some pools' policy looks at names them, and is left out where no pool does."""
        pools = list(Pool.objects.filter(sharing_policy=policy).values_list("name", flat=True))
        if pools:
            self.fields[name].help_text = " ".join(
                [str(self.fields[name].help_text), gettext("Used in pool {0}.").format(", ".join(pools))]
            )
        else:
            del self.fields[name]

    @property
    def asked(self) -> dict[str, Any]:
        """For the service."""
        values = {name: value for name, value in self.cleaned_data.items() if name not in MoreForm.base_fields}
        values["core_limit"] = values["core_limit"] or values["core_request"]
        return values | self.asked_more

    def clean(self) -> dict[str, Any]:
        """The API's own rule."""
        values = super().clean() or {}
        request, limit = values.get("core_request"), values.get("core_limit")
        if request and limit and limit < request:
            self.add_error("core_limit", _("Must not be below the core request."))
        return values


class FilterForm(forms.Form):
    """What the claims list is narrowed by; it lives in the URL."""

    state = forms.ChoiceField(
        label=_("State"),
        required=False,
        choices=[("", _("All but released")), *((value, badge(value).label) for value in ClaimState.values)],
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        required=False,
        to_field_name="slug",
        empty_label=_("All tenants"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Tenant.objects.visible_to(principal)
