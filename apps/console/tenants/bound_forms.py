"""Forms of a tenant's limits: of each kind one for a new limit and one for its changeable fields."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from apps.console.shell.forms import ServiceForm, moment, number
from apps.console.tenants.bound_labels import FIELDS, PERIODS
from apps.console.tenants.quotas import RESOURCES, RESOURCES_SAID, amount
from apps.quotas.api.serializers import MAX_AMOUNT
from apps.quotas.models import Pool, Tenant, User
from apps.quotas.models.budget import HOUR_PLACES, Period
from apps.quotas.models.limits import ClaimField

UNITS = {
    ClaimField.CORE_REQUEST.value: _("In percent of a GPU."),
    ClaimField.CORE_LIMIT.value: _("In percent of a GPU."),
    ClaimField.MEMORY_MIB.value: _("In MiB on each GPU."),
    ClaimField.GPU_COUNT.value: _("A number of GPUs."),
    ClaimField.TIME_LIMIT_SECONDS.value: _("In seconds."),
}


class BoundForm(ServiceForm):
    """The settings of a row, and the version that its reader saw."""

    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, tenant: Tenant, row: Any = None) -> None:
        initial = {"version": row.version, **self.facts_of(row)} if row else {}
        super().__init__(data, initial=initial)
        self.tenant = tenant

    def facts_of(self, row: Any) -> dict[str, Any]:
        """Return the row's values by field."""
        return {name: getattr(row, name) for name in self.base_fields if hasattr(row, name)}

    @property
    def versions(self) -> frozenset[int] | None:
        """The version for the service; None without one."""
        version = self.cleaned_data["version"]
        return None if version is None else frozenset({version})

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service."""
        return {name: value for name, value in self.cleaned_data.items() if name != "version"}


class LimitForm(BoundForm):
    """The limit of a member."""

    # Not `hard`: the help of that name describes a quota.
    most = amount(_("May hold"), _("Over all pools, by all their tokens together. Empty: unlimited; 0: nothing."))

    def facts_of(self, row: Any) -> dict[str, Any]:
        """Return the limit under the form's name for it."""
        return {"most": row.hard}

    @property
    def values(self) -> dict[str, Any]:
        """The limit under the service's name for it."""
        said = super().values
        return {"hard": said.pop("most"), **said}


class NewLimitForm(LimitForm):
    """The member and the resource of a new limit."""

    user = forms.ModelChoiceField(
        User.objects.none(),
        label=_("Member"),
        to_field_name="username",
        required=False,
        empty_label=_("Each member that has no limit of their own"),
        help_text=_("A member’s own limit counts instead of everybody’s."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    resource = forms.ChoiceField(
        label=_("Resource"),
        choices=RESOURCES,
        help_text=RESOURCES_SAID,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    field_order = ("user", "resource", "most")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["user"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = self.tenant.members.filter(is_active=True).order_by("username")


class RangeForm(BoundForm):
    """The bounds and the default of a range."""

    minimum = number(_("At least"), most=MAX_AMOUNT, required=False, help_text=_("Empty: no bound."))
    maximum = number(_("At most"), most=MAX_AMOUNT, required=False, help_text=_("Empty: no bound."))
    default = number(
        _("Unless said"), most=MAX_AMOUNT, required=False, help_text=_("The default for claims that do not set it.")
    )

    def __init__(self, *args: Any, row: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, row=row, **kwargs)
        if row:
            for name in ("minimum", "maximum", "default"):
                self.fields[name].help_text = f"{UNITS[row.field]} {self.fields[name].help_text}"


class NewRangeForm(RangeForm):
    """The field and the pool of a new range."""

    field = forms.ChoiceField(
        label=_("Field of a claim"),
        choices=list(FIELDS.items()),
        help_text=_("Core in percent, memory in MiB on each GPU, the time limit in seconds."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        required=False,
        empty_label=_("All pools"),
        help_text=_("Where both are set, both bounds hold and the pool’s default comes first."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    field_order = ("field", "pool")


class BudgetForm(BoundForm):
    """The amount of a budget."""

    gpu_hours = forms.DecimalField(
        label=_("GPU-hours"),
        min_value=0,
        max_digits=14,
        decimal_places=HOUR_PLACES,
        help_text=_("Reserved, of all pools and models: a quarter of a GPU for four hours is one."),
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "decimal", "step": "any"}),
    )

    def facts_of(self, row: Any) -> dict[str, Any]:
        """Return the amount without trailing zeros."""
        return {"gpu_hours": f"{row.gpu_hours.normalize():f}"}


class NewBudgetForm(BudgetForm):
    """The period of a new budget."""

    period = forms.ChoiceField(
        label=_("Period"),
        choices=list(PERIODS.items()),
        help_text=_("Weeks begin on Monday, months on the first, both at midnight UTC."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    starts_at = moment(_("Begins"), required=False, help_text=_("In UTC; for a budget that is there once."))
    ends_at = moment(_("Ends"), required=False, help_text=_("In UTC; for a budget that is there once."))
    field_order = ("period", "gpu_hours", "starts_at", "ends_at")

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule: only a one-time budget has times, and it has both."""
        values = super().clean() or {}
        begin, end = values.get("starts_at"), values.get("ends_at")
        once = values.get("period") == Period.CUSTOM
        if once and not self.errors and (begin is None or end is None or begin >= end):
            self.add_error("ends_at", _("Enter a beginning, and an end after it."))
        if not once and (begin, end) != (None, None):
            self.add_error("starts_at", _("Only for a budget that is there once."))
        return values
