"""The form of a pool, made from the API's own fields: bounds and help texts are defined once."""

from typing import Any, Final

from django import forms
from django.core.validators import RegexValidator
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.console.shell.amounts import AmountField
from apps.console.shell.forms import Group, ServiceForm, VersionedForm, flatten, name_field
from apps.quotas.api.pool_serializers import PoolChangeSerializer, RebalanceBoundsSerializer
from apps.quotas.models import Pool, RebalanceMode, RebalancePolicy, SharingPolicy
from apps.quotas.models.pool import (
    AuditPolicy,
    BackEnd,
    FailoverPolicy,
    FairShare,
    IdleRule,
    MigInstances,
    MpsGroup,
    PlacementPolicy,
    PreemptBy,
)
from apps.quotas.models.resource import MOST_AMOUNT
from apps.quotas.models.tenant import SLUG
from apps.rebalancing.values import Bounds

# Of a bound that is not given.
DEFAULTS: Final = Bounds()
BOUNDS: Final = tuple(name for name in map(str, RebalanceBoundsSerializer().fields) if name != "calendar")
BASICS: Final = (
    "description", "sharing_policy", "backend", "mps_group", "core_ceiling", "parts", "oversubscribe", "slice_seconds",
    "pack_keep_percent", "default_schedule", "jobs", "remote", "remote_mib_per_second", "idle_rule",
    "idle_seconds", "rebalance_mode", "failover_policy",
)  # fmt: skip
GROUPS: Final = (
    Group(_("Basics"), BASICS),
    Group(_("Queue"), ("fair_share", "half_life_seconds")),
    Group(
        _("Advanced: placement and violations"),
        ("placement_policy", "preempt_by", "audit_policy", "repair_drift", "mig", "longest_kernel_ms"),
        folded=True,
    ),
    Group(
        _("Advanced: lost nodes and idle claims"),
        ("failover_after_seconds", "unused_seconds", "idle_grace_seconds"),
        folded=True,
    ),
    Group(_("Advanced: rebalancing"), ("rebalance_policy", "lend_memory", *BOUNDS), folded=True),
)
SETTABLE: Final[tuple[str, ...]] = tuple(name for group in GROUPS for name in group.names if name not in BOUNDS)
CHOICES: Final[dict[str, type[TextChoices]]] = {
    "sharing_policy": SharingPolicy,
    "backend": BackEnd,
    "mig": MigInstances,
    "mps_group": MpsGroup,
    "placement_policy": PlacementPolicy,
    "audit_policy": AuditPolicy,
    "fair_share": FairShare,
    "preempt_by": PreemptBy,
    "failover_policy": FailoverPolicy,
    "idle_rule": IdleRule,
    "rebalance_mode": RebalanceMode,
    "rebalance_policy": RebalancePolicy,
}

LABELS: Final = {
    "description": _("Description"),
    "sharing_policy": _("Sharing policy"),
    "backend": _("Back end"),
    "mig": _("MIG instances"),
    "mps_group": _("MPS group"),
    "core_ceiling": _("Core ceiling"),
    "parts": _("Parts"),
    "oversubscribe": _("Oversubscription"),
    "slice_seconds": _("Slice seconds"),
    "default_schedule": _("Schedule of new claims"),
    "jobs": _("Jobs"),
    "remote": _("Remote shares"),
    "remote_mib_per_second": _("Remote shares: MiB/s"),
    "pack_keep_percent": _("Packing: rate kept"),
    "placement_policy": _("Placement policy"),
    "fair_share": _("Fair share"),
    "half_life_seconds": _("Half-life of past use"),
    "preempt_by": _("Preempt by"),
    "audit_policy": _("Audit policy"),
    "longest_kernel_ms": _("Longest best-effort kernel (ms)"),
    "repair_drift": _("Repair drift"),
    "failover_policy": _("Failover policy"),
    "failover_after_seconds": _("Failover after seconds"),
    "idle_rule": _("Idle rule"),
    "idle_seconds": _("Idle seconds"),
    "unused_seconds": _("Release if never used for"),
    "idle_grace_seconds": _("Idle grace seconds"),
    "rebalance_mode": _("Rebalance mode"),
    "rebalance_policy": _("Rebalance policy"),
    "rebalance_bounds": _("Rebalance bounds"),
    "lend_memory": _("Lend memory"),
    "window_seconds": _("Window"),
    "cool_down_seconds": _("Cool down seconds"),
    "floor_percent": _("Floor percent"),
    "ceiling_percent": _("Ceiling percent"),
    "step_percent": _("Step percent"),
    "margin_percent": _("Margin percent"),
    "wake_percent": _("Wake percent"),
    "idle_percent": _("Idle threshold"),
    "throttled_percent": _("Throttled percent"),
    "most_changes": _("Max changes per run"),
    "forecast_risk_percent": _("Forecast risk"),
}


def label_in_sentence(name: str) -> str:
    """Return a field's name inside a sentence; a field that only the API sets has its own name."""
    if name not in LABELS:
        return name.replace("_", " ")
    # An abbreviation keeps its capitals: "MPS group".
    return " ".join(word if word.isupper() else word.lower() for word in str(LABELS[name]).split(" "))


class PoolForm(VersionedForm):
    """The settings of a pool for an operator; the API has a few fields more."""

    groups = GROUPS

    def __init__(self, data: Any = None, *, pool: Pool) -> None:
        initial = {name: getattr(pool, name) for name in SETTABLE} | pool.rebalance_bounds | {"version": pool.version}
        super().__init__(data, initial=initial)
        self.pool = pool
        of_pool, of_bounds = PoolChangeSerializer().fields, RebalanceBoundsSerializer().fields
        for group in GROUPS:
            for name in group.names:
                self.fields[name] = _field(name, of_bounds[name] if name in BOUNDS else of_pool[name])

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule between two bounds."""
        values = super().clean() or {}
        checked = RebalanceBoundsSerializer(data=self._bounds(values))
        if not self.errors and not checked.is_valid():
            for name, detail in checked.errors.items():
                self.add_error(name if name in self.fields else None, " ".join(flatten(detail)))
        return values

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from the pool, for the service."""
        values = {name: self.cleaned_data[name] for name in SETTABLE}
        values["rebalance_bounds"] = self._bounds(self.cleaned_data)
        return {name: value for name, value in values.items() if getattr(self.pool, name) != value}

    def _bounds(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the given bounds; the calendar is set by the API, and stays."""
        given = {name: values[name] for name in BOUNDS if values.get(name) is not None}
        kept = self.pool.rebalance_bounds.get("calendar")
        return given | ({"calendar": kept} if kept else {})


class NewPoolForm(ServiceForm):
    """A new pool: its name, and settings that are seldom changed."""

    name = name_field(
        "a100",
        _("In URLs and commands: a–z, 0–9 and hyphens. It cannot be changed later."),
        validators=[RegexValidator(SLUG)],
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"sharing_policy": SharingPolicy.BURST})
        of_pool = PoolChangeSerializer().fields
        for name in ("description", "sharing_policy", "parts"):
            self.fields[name] = _field(name, of_pool[name])

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The given values, for the service."""
        return {name: value for name, value in self.cleaned_data.items() if value not in ("", None)}


def _field(name: str, said: Any) -> forms.Field:
    """Return the form's field for one of the API's."""
    # Marks of code mean nothing on a page.
    words = str(said.help_text or "").replace("`", "")
    common: dict[str, Any] = {"label": LABELS[name], "help_text": words}
    if name in CHOICES:
        select = forms.Select(attrs={"class": "form-select"})
        return forms.ChoiceField(choices=CHOICES[name].choices, widget=select, **common)
    if isinstance(said, serializers.BooleanField):
        box = forms.CheckboxInput(attrs={"class": "form-check-input"})
        return forms.BooleanField(required=False, widget=box, **common)
    if isinstance(said, serializers.IntegerField) and said.allow_null:
        words = str(said.help_text).partition(" Null:")[0].replace("`", "")
        least, most = said.min_value or 0, said.max_value or MOST_AMOUNT
        none = _("Unlimited") if name == "remote_mib_per_second" else _("Never")
        return AmountField(label=LABELS[name], help_text=words, unlimited=none, least=least, most=most)
    if isinstance(said, serializers.IntegerField):
        default = getattr(DEFAULTS, name) if name in BOUNDS else said.default
        common |= {"min_value": said.min_value, "max_value": said.max_value}
        common["required"] = name not in BOUNDS
        common["widget"] = forms.NumberInput(
            attrs={"class": "form-control", "inputmode": "numeric", "placeholder": default}
        )
        return forms.IntegerField(**common)
    text = forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"})
    return forms.CharField(required=False, max_length=500, widget=text, **common)
