"""Forms of the claims' pages: a new claim, new limits."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.validators import RegexValidator
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ValidationError

from apps.console.claims.instance_form import InstanceForm
from apps.console.shell.amounts import MemoryField
from apps.console.shell.fields import choice
from apps.console.shell.forms import Group, ServiceForm, TenantForm, flatten, memory, moment, number
from apps.nodes.api.serializers import LABEL_NAME, LABEL_WRONG, LabelsField
from apps.nodes.models import Gpu
from apps.quotas.models import Pool, SharingPolicy
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.principals import Principal
from apps.scheduling.api.serializers import LATEST_START, MAX_MEMORY_MIB
from apps.scheduling.models.choices import Isolation, Remote
from apps.scheduling.models.claim import MOST_WEIGHT
from gpucloud.schedules import MOST_LETTERS
from gpucloud.schedules import validate as validate_schedule

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

LABEL_CHECK = RegexValidator(LABEL_NAME, LABEL_WRONG)


def label(name: "StrPromise", help_text: "StrPromise") -> forms.CharField:
    """Return a field for a label of the tenant's claims."""
    widget = forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"})
    return forms.CharField(
        label=name, help_text=help_text, required=False, max_length=63, widget=widget, validators=[LABEL_CHECK]
    )


def schedule_field(empty: "StrPromise") -> forms.CharField:
    """Return a field for the weekly window of a claim. `empty`: what an empty one means."""
    words = _("Outside of this weekly window it is suspended: weekdays 09:00-18:00 Europe/Berlin.")
    return forms.CharField(
        label=_("Schedule"),
        required=False,
        max_length=MOST_LETTERS,
        validators=[validate_schedule],
        help_text=format_lazy("{} {}", words, empty),
        widget=forms.TextInput(attrs={"class": "form-control"}),
    )


def memory_limit() -> MemoryField:
    """Return the field of the memory up to which a best-effort claim borrows."""
    return MemoryField(
        label=_("Memory limit"),
        required=False,
        most=MOST[ClaimField.MEMORY_MIB],
        help_text=_(
            "Best effort only: up to this, it borrows memory that others on its GPU do not use. Empty: it borrows none."
        ),
    )


def remote_choice() -> forms.ChoiceField:
    """Return the field of the use from other machines."""
    words = _("With a program on a machine without a GPU, over the network.")
    return choice(_("Use from other machines"), Remote.choices, words, required=False)


class MoreForm(ServiceForm):
    """The fields that only some claims need."""

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
    start_at = moment(_("Not before"), required=False, help_text=_("Earliest placement."))
    affinity = label(_("Together with"), _("A label: your tenant’s claims that have it share a GPU."))
    anti_affinity = label(_("Apart from"), _("A label: your tenant’s claims that have it never share a GPU."))
    exclusion = label(_("Alone with"), _("A label: its GPUs carry only your tenant’s claims that have it."))
    movable = forms.BooleanField(
        label=_("May move to other nodes"),
        required=False,
        help_text=_("There its programs start again from what they saved."),
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    remote = remote_choice()
    schedule = schedule_field(_("Empty: that of the pool, if it has one."))
    memory_limit_mib = memory_limit()
    node_selector = forms.CharField(
        label=_("Nodes with labels"),
        required=False,
        max_length=2000,
        help_text=_("All of them, such as zone=a, net=ib."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "zone=a, net=ib"}),
    )

    def clean_node_selector(self) -> dict[str, str]:
        """Parse `zone=a, net=ib` into the API's form."""
        words = [word.strip().partition("=") for word in self.cleaned_data["node_selector"].split(",") if word.strip()]
        if not all(equals for _, equals, _ in words):
            raise forms.ValidationError(_("Write name=value, and commas between them: zone=a, net=ib."))
        try:
            labels: dict[str, str] = LabelsField().run_validation(
                {name.strip(): value.strip() for name, _, value in words}
            )
        except ValidationError as error:
            raise forms.ValidationError(str(next(iter(flatten(error.detail))))) from error
        return labels

    def clean_start_at(self) -> datetime | None:
        """Apply the API's own rule."""
        start_at: datetime | None = self.cleaned_data["start_at"]
        if start_at is not None and start_at > timezone.now() + LATEST_START:
            raise forms.ValidationError(gettext("Must be within {0} days.").format(LATEST_START.days))
        return start_at

    @property
    def more_arguments(self) -> dict[str, Any]:
        """The given values for the service, so that the tenant's defaults apply to the rest."""
        values = {name: self.cleaned_data[name] for name in MoreForm.base_fields if self.cleaned_data.get(name)}
        if minutes := values.pop("time_limit_minutes", None):
            values["time_limit_seconds"] = 60 * minutes
        return values


class ClaimForm(InstanceForm, MoreForm, TenantForm):
    """A new claim: the fields that most claims need, and folded ones; the API has a few fields more."""

    groups = [
        Group(_("More: priority, time, labels, nodes"), tuple(MoreForm.base_fields), folded=True),
        Group(_("MIG instance"), tuple(InstanceForm.base_fields), folded=True),
    ]

    gpu_count = number(_("GPUs"), most=64, help_text=_("Number of GPUs, each with the same share."), initial=1)
    core_request = number(_("Core request"), most=100, help_text=_("Percent of each GPU, guaranteed."), initial=25)
    core_limit = number(
        _("Core limit"), most=100, help_text=_("Percent, the ceiling; the request unless given."), required=False
    )
    memory_mib = memory(initial=4096)
    weight = number(
        _("Weight"), most=MOST_WEIGHT, help_text=_("Weight among the claims that compete for the GPU."), initial=1
    )
    best_effort = forms.BooleanField(
        label=_("Best effort"),
        required=False,
        help_text=_("Uses only the compute that other claims on the GPU leave idle."),
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, principal=principal, **kwargs)
        self._keep_where_used("weight", SharingPolicy.WEIGHTED)
        self._keep_where_used("best_effort", SharingPolicy.PREEMPT)
        self.offer_instances(self._mine)

    def _keep_where_used(self, name: str, policy: SharingPolicy) -> None:
        """Add the names of the pools whose policy uses the field to its help; remove it if there are none."""
        pools = list(Pool.objects.filter(sharing_policy=policy).values_list("name", flat=True))
        if pools:
            self.fields[name].help_text = " ".join(
                [str(self.fields[name].help_text), gettext("Used in pool {0}.").format(", ".join(pools))]
            )
        else:
            del self.fields[name]

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        apart = {*MoreForm.base_fields, *InstanceForm.base_fields}
        values = {name: value for name, value in self.cleaned_data.items() if name not in apart}
        values["core_limit"] = values["core_limit"] or values["core_request"]
        more = self.more_arguments | self.instance_arguments
        if "instance_of" in more:
            more.pop("isolation", None)
        elif more.get("isolation") == Isolation.HARD or "profile" in more:
            # The profile decides the limit, and if it is named, everything.
            decided = {"core_limit"} | ({"core_request", "memory_mib"} if "profile" in more else set())
            values = {name: value for name, value in values.items() if name not in decided}
        return values | more

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule."""
        values = super().clean() or {}
        request, limit = values.get("core_request"), values.get("core_limit")
        if request and limit and limit < request:
            self.add_error("core_limit", _("Must not be below the core request."))
        return values


class ResizeForm(ServiceForm):
    """The three limits that change live, each with the value that its reader saw.

    Only changed ones are sent. If another person changed one meanwhile, the reader is told first.
    """

    core_request = number(
        _("Core request"), most=100, help_text=_("Percent of the GPU, guaranteed."), show_hidden_initial=True
    )
    core_limit = number(
        _("Core limit"), most=100, help_text=_("Percent, the ceiling when others are idle."), show_hidden_initial=True
    )
    memory_mib = memory(show_hidden_initial=True)

    def __init__(self, *args: Any, gpus: Iterable[Gpu] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["memory_mib"]
        assert isinstance(field, MemoryField)
        # Its share of each of its GPUs is at most the whole of the smallest one.
        field.most = min((gpu.memory_mib for gpu in gpus), default=field.most)

    @property
    def changes(self) -> dict[str, Any]:
        """The changed limits, for the service."""
        return {name: self.cleaned_data[name] for name in self.changed_data}

    def is_outdated(self, present: Mapping[str, int]) -> bool:
        """Return whether the claim has other limits than those that the reader saw."""
        seen = {name: self.data.get(self.add_initial_prefix(name)) for name in self.fields}
        return any(text is not None and self._parse(name, text) != present[name] for name, text in seen.items())

    def _parse(self, name: str, text: str) -> Any:
        try:
            return self.fields[name].clean(text)
        except forms.ValidationError:
            return None

    def rebase(self, present: Mapping[str, int]) -> None:
        """Show the present limits where nothing was typed; what was typed stays, and applies when it is sent again."""
        changed, data = self.changed_data, dict(self.data.items())
        for name, field in self.fields.items():
            shown = str(field.prepare_value(present[name]))
            data |= {self.add_initial_prefix(name): shown} | ({} if name in changed else {name: shown})
        self.data = data


class SuggestionForm(forms.Form):
    """A suggested change of a waiting claim: the fields that can be changed while it waits."""

    core_request = number(_("Core request"), most=100, help_text="", required=False)
    memory_mib = number(_("Memory"), most=MAX_MEMORY_MIB, help_text="", required=False)

    @property
    def changes(self) -> dict[str, Any]:
        """The given fields, for the service."""
        return {name: value for name, value in self.cleaned_data.items() if value is not None}
