"""Forms of webhooks: where one goes and what it is told of; what lists of them and of their deliveries show."""

from typing import Any, Final

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.checkbox_groups import boxes, grouped
from apps.console.shell.forms import ServiceForm
from apps.console.shell.owner_filter import administered
from apps.quotas.models import EventKind, Tenant, Webhook
from apps.quotas.models.webhook import TEST, DeliveryState
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError
from gpucloud.web.badges import badge

SETTABLE: Final = ("url", "events", "description")
SELECT: Final = {"class": "form-select"}
# Events by what they are about: a title, and how their names begin.
GROUPS: Final = (
    (_("Claims"), ("claim.",)),
    (_("Quotas, requests, budgets"), ("quota.", "quota_request.", "budget.")),
    (_("Reservations"), ("reservation.",)),
    (_("Nodes"), ("node.",)),
)
EVENTS: Final = [
    (title, [(value, word) for value, word in EventKind.choices if value.startswith(names)]) for title, names in GROUPS
]


class WebhookForm(ServiceForm):
    """What can be said of a webhook at any time."""

    url = forms.CharField(
        label=_("Where to"),
        max_length=2000,
        help_text=_("https, on the public internet; an operator’s setting may name other networks."),
        widget=forms.TextInput(
            attrs={
                "class": "form-control", "autocomplete": "off", "inputmode": "url", "spellcheck": "false",
                "placeholder": "https://hooks.example.org/gpus",
            }
        ),
    )  # fmt: skip
    description = forms.CharField(
        label=_("Description"),
        max_length=200,
        required=False,
        help_text=_("For people."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"}),
    )
    events = boxes(_("It is told when"), EVENTS, error_messages={"required": _("Choose one at least.")})

    @property
    def usual(self) -> list[forms.BoundField]:
        """The fields but the boxes."""
        return [field for field in self.visible_fields() if field.name != "events"]

    @property
    def groups(self) -> Any:
        """Of the boxes."""
        return grouped(self["events"])

    def refuse(self, error: GpucloudError) -> None:
        """A URL that is not taken is said beside it."""
        if error.code == "webhook-url":
            self.add_error("url", f"{gettext(error.title)}. {gettext(error.detail)}")
        else:
            super().refuse(error)


class NewWebhookForm(WebhookForm):
    """A webhook, and whose."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        to_field_name="slug",
        required=False,
        help_text=_("Whose events it is told of. It cannot be changed later."),
        widget=forms.Select(attrs=SELECT),
    )
    field_order = ("tenant", "url", "description", "events")

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = administered(principal)
        field.required = not principal.is_operator
        field.empty_label = gettext("The whole platform: of every tenant") if principal.is_operator else None


class ChangeForm(WebhookForm):
    """What can be changed of one."""

    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, hook: Webhook) -> None:
        super().__init__(data, initial={name: getattr(hook, name) for name in (*SETTABLE, "version")})
        self.hook = hook

    @property
    def changes(self) -> dict[str, Any]:
        """For the service: what differs from the webhook as it is."""
        values = {name: self.cleaned_data[name] for name in SETTABLE}
        values["events"] = sorted(values["events"])
        return {name: value for name, value in values.items() if getattr(self.hook, name) != value}

    def typed_over(self) -> None:
        """Somebody was faster: what was typed stays, and sent again it counts against what is there now."""
        assert isinstance(self.data, QueryDict)
        self.data = self.data.copy()
        self.data["version"] = str(self.hook.version)


# Of the list of deliveries; None: all.
STATES: Final = [(None, _("All")), *((one.value, badge(one).label) for one in DeliveryState)]


class DeliveryForm(forms.Form):
    """What a webhook's deliveries are narrowed by; it lives in the URL, and links of the page write it."""

    state = forms.ChoiceField(label=_("State"), choices=DeliveryState.choices, required=False)
    kind = forms.ChoiceField(
        label=_("Event"), choices=[(name, name) for name in (*EventKind.values, TEST)], required=False
    )

    @property
    def wanted(self) -> dict[str, str]:
        """`state` and `kind`; a field that means nothing narrows nothing."""
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value}
