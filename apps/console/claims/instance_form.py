"""Fields of a new claim that has a MIG instance of its own, opens it, or runs in one of its tenant's."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from apps.console.shell.amounts import MemoryField
from apps.console.shell.forms import ServiceForm, number
from apps.nodes.models import Gpu
from apps.quotas.models.limits import MOST, ClaimField
from apps.scheduling.api.instance_fields import PROFILE, PROFILE_WRONG
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.choices import Isolation

if TYPE_CHECKING:
    ClaimChoice = forms.ModelChoiceField[Claim]
else:
    # Django's has no type arguments when it runs.
    ClaimChoice = forms.ModelChoiceField


class OpenerField(ClaimChoice):
    """A choice among claims that opened their instance."""

    def label_from_instance(self, obj: Claim) -> str:
        """Return the claim as people know it, and the size of its instance."""
        return f"{obj.tenant.slug}/{obj.name}: {obj.profile}, {obj.pool.name}"


class InstanceForm(ServiceForm):
    """The fields of MIG instances; a form without GPUs in MIG mode has none of them."""

    isolation = forms.ChoiceField(
        label=_("Isolation"),
        required=False,
        choices=Isolation.choices,
        help_text=_("A MIG instance is a boundary in hardware; it has at least the core request and the memory."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    profile = forms.CharField(
        label=_("MIG profile"),
        required=False,
        max_length=40,
        validators=[RegexValidator(PROFILE, PROFILE_WRONG)],
        help_text=_("The instance’s profile, such as 2g.35gb: then it decides core and memory."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"}),
    )
    own_core = number(
        _("Own core"),
        least=0,
        most=100,
        required=False,
        help_text=_("Opens the instance to other claims of the tenant; percent of the GPU for this claim’s programs."),
    )
    own_memory_mib = MemoryField(
        label=_("Own memory"),
        most=MOST[ClaimField.MEMORY_MIB],
        required=False,
        help_text=_("Memory of the opened instance for this claim’s programs; GiB unless it has a unit."),
    )
    instance_of = OpenerField(
        Claim.objects.none(),
        label=_("In the instance of"),
        required=False,
        to_field_name="uid",
        empty_label=_("None"),
        help_text=_("A claim that opened its instance: this one runs in it, ends with it, and is not charged."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )

    def offer_instances(self, tenants: Any) -> None:
        """Offer the opened instances of these tenants; without a GPU in MIG mode, none of the fields."""
        if not Gpu.objects.filter(mig__isnull=False, present=True).exists():
            for name in InstanceForm.base_fields:
                del self.fields[name]
            return
        openers = Claim.objects.filter(tenant__in=tenants, own_core__isnull=False, instance_of__isnull=True)
        openers = openers.exclude(state__in=(ClaimState.RELEASING, ClaimState.RELEASED))
        field = self.fields["instance_of"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = openers.select_related("tenant", "pool").order_by("tenant__slug", "name", "pk")

    @property
    def instance_arguments(self) -> dict[str, Any]:
        """The given values for the service; 0 percent of its own is a value, too."""
        values = {name: self.cleaned_data.get(name) for name in InstanceForm.base_fields}
        given = {name: value for name, value in values.items() if value is not None and value != ""}
        if (opener := given.get("instance_of")) is not None:
            given["instance_of"] = opener.uid
        return given

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rules."""
        values = super().clean() or {}
        core, memory_mib = values.get("own_core"), values.get("own_memory_mib")
        if (core is None) != (memory_mib is None):
            self.add_error("own_memory_mib", _("Give own core and own memory together."))
        elif core is not None and not values.get("profile"):
            self.add_error("profile", _("Name the profile of the instance that is to be opened."))
        return values
