"""Forms of a tenant's limits: of each kind one for a new limit and one for its changeable fields."""

from typing import Any, Final

from django import forms
from django.utils.translation import gettext_lazy as _

from apps.console.shell.amounts import AmountField
from apps.console.shell.fields import choice, one_of, switch
from apps.console.shell.forms import VersionedForm, moment
from apps.console.tenants.bound_labels import FIELDS, PERIODS
from apps.console.tenants.quotas import RESOURCES, RESOURCES_SAID, UNLIMITED, profile_choices, read_as
from apps.quotas.models import Pool, Tenant, User
from apps.quotas.models.budget import DEFAULT_GRACE_SECONDS, HELP, HOUR_PLACES, MOST_GRACE_SECONDS, Period, WhenSpent
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.resource import AMOUNT_HELP

UNITS: Final = {
    ClaimField.CORE_REQUEST.value: _("In percent of a GPU."),
    ClaimField.CORE_LIMIT.value: _("In percent of a GPU."),
    ClaimField.MEMORY_MIB.value: _("On each GPU, in GiB unless it has a unit."),
    ClaimField.GPU_COUNT.value: _("A number of GPUs."),
    ClaimField.TIME_LIMIT_SECONDS.value: _("In seconds."),
}


class BoundForm(VersionedForm):
    """The settings of a row."""

    # The field that decides the unit of the amounts; a row has its own.
    unit_field = ""

    def __init__(self, data: Any = None, *, tenant: Tenant, row: Any = None) -> None:
        initial = {"version": row.version, **self.facts_of(row)} if row else {}
        super().__init__(data, initial=initial)
        self.tenant = tenant
        if self.unit_field:
            read_as(self, getattr(row, self.unit_field) if row else (data or {}).get(self.unit_field, ""))

    def facts_of(self, row: Any) -> dict[str, Any]:
        """Return the row's values by field."""
        return {name: getattr(row, name) for name in self.base_fields if hasattr(row, name)}

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service."""
        return {name: value for name, value in self.cleaned_data.items() if name != "version"}


class LimitForm(BoundForm):
    """The limit of a member."""

    unit_field = "resource"
    # Not `hard`: the help of that name describes a quota.
    most = AmountField(label=_("Limit"), help_text=AMOUNT_HELP["member_hard"], unlimited=UNLIMITED)

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

    user = one_of(
        _("Member"), User.objects.none(), "username", _("A member’s own limit counts instead of everybody’s."),
        required=False, empty_label=_("Each member that has no limit of their own"),
    )  # fmt: skip
    resource = choice(_("Resource"), RESOURCES, RESOURCES_SAID)
    field_order = ("user", "resource", "most")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["most"] = ""
        resource = self.fields["resource"]
        assert isinstance(resource, forms.ChoiceField)
        resource.choices = [*RESOURCES, *profile_choices()]
        field = self.fields["user"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = self.tenant.members.filter(is_active=True).order_by("username")


class RangeForm(BoundForm):
    """The bounds and the default of a range."""

    unit_field = "field"
    minimum = AmountField(label=_("At least"), least=1, unlimited=_("No bound"))
    maximum = AmountField(label=_("At most"), least=1, unlimited=_("No bound"))
    default = AmountField(
        label=_("Default"),
        least=1,
        help_text=AMOUNT_HELP["range_default"],
        unlimited=_("No default"),
    )

    def __init__(self, *args: Any, row: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, row=row, **kwargs)
        for name in ("minimum", "maximum", "default"):
            field = self.fields[name]
            assert isinstance(field, AmountField)
            field.most = MOST.get(field.resource, field.most)
            if row:
                field.help_text = f"{UNITS[row.field]} {field.help_text}"


class NewRangeForm(RangeForm):
    """The field and the pool of a new range."""

    field = choice(
        _("Field of a claim"),
        list(FIELDS.items()),
        _("Core in percent, memory in GiB on each GPU, the time limit in seconds."),
    )
    pool = one_of(
        _("Pool"), Pool.objects.order_by("name"), "name",
        _("Where both are set, both bounds hold and the pool’s default comes first."),
        required=False, empty_label=_("All pools"),
    )  # fmt: skip
    field_order = ("field", "pool")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Neither typed nor unlimited as yet.
        self.initial.update(minimum="", maximum="", default="")


class BudgetForm(BoundForm):
    """The amount of a budget."""

    gpu_hours = forms.DecimalField(
        label=_("GPU-hours"),
        min_value=0,
        max_digits=14,
        decimal_places=HOUR_PLACES,
        help_text=_("Allocated GPU-hours in all pools: a quarter of a GPU for four hours is one."),
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "decimal", "step": "any"}),
    )

    when_spent = choice(_("Once it is spent"), WhenSpent.choices, HELP["when_spent"], required=False, initial="refuse")
    grace_seconds = forms.IntegerField(
        label=_("Grace"),
        required=False,
        initial=DEFAULT_GRACE_SECONDS,
        min_value=0,
        max_value=MOST_GRACE_SECONDS,
        help_text=HELP["grace_seconds"],
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    spares_reserved = switch(_("Spare claims in reservations"), HELP["spares_reserved"])
    spared_priority = forms.IntegerField(
        label=_("Spare from this priority on"),
        required=False,
        min_value=-1000,
        max_value=1000,
        help_text=HELP["spared_priority"],
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )

    def facts_of(self, row: Any) -> dict[str, Any]:
        """Return the values, and the amount without trailing zeros."""
        return super().facts_of(row) | {"gpu_hours": f"{row.gpu_hours.normalize():f}"}

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service; the choice and the grace stay as they are where nothing is given."""
        said = super().values
        empty = [name for name in ("when_spent", "grace_seconds") if said[name] in ("", None)]
        return {name: value for name, value in said.items() if name not in empty}


class NewBudgetForm(BudgetForm):
    """The period of a new budget."""

    period = choice(
        _("Period"), list(PERIODS.items()), _("Weeks begin on Monday, months on the first, both at midnight UTC.")
    )
    starts_at = moment(_("Begins"), required=False, help_text=_("For a one-time budget."))
    ends_at = moment(_("Expires"), required=False, help_text=_("For a one-time budget."))
    field_order = ("period", "gpu_hours", "starts_at", "ends_at", "when_spent", "grace_seconds")

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule: only a one-time budget has times, and it has both."""
        values = super().clean() or {}
        begin, end = values.get("starts_at"), values.get("ends_at")
        once = values.get("period") == Period.CUSTOM
        if once and not self.errors and (begin is None or end is None or begin >= end):
            self.add_error("ends_at", _("Enter a beginning, and an end after it."))
        if not once and (begin, end) != (None, None):
            self.add_error("starts_at", _("Only for a one-time budget."))
        return values
