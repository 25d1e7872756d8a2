"""Forms of webhooks: the endpoint and its events; the filter of deliveries."""

from typing import Any, Final

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.fields import boxes, one_of, radios
from apps.console.shell.forms import ServiceForm, VersionedForm
from apps.console.shell.owner_filter import administered_tenants
from apps.quotas.models import EventKind, Tenant, Webhook
from apps.quotas.models.webhook import TEST, DeliveryState, WebhookFormat
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks.formats.rendering import SECRET_URLS, shown_url
from gpucloud.errors import GpucloudError
from gpucloud.web.badges import badge

SETTABLE: Final = ("url", "events", "description")
# Field beside which a refusal is shown, by the code of the error.
BESIDE: Final = {"webhook-url": "url", "webhook-events": "events"}
# Events by subject: a title, and the prefixes of their names.
GROUPS: Final = (
    (_("Claims"), ("claim.",)),
    (_("Jobs"), ("job.",)),
    (_("Quotas, requests, budgets"), ("quota.", "quota_request.", "budget.")),
    (_("Reservations"), ("reservation.",)),
    (_("Nodes"), ("node.",)),
)
EVENTS: Final = [
    (title, [(value, word) for value, word in EventKind.choices if value.startswith(names)]) for title, names in GROUPS
]


class WebhookForm(ServiceForm):
    """The fields of a webhook that can change at any time."""

    url = forms.CharField(
        label=_("URL"),
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
    events = boxes(_("Events"), EVENTS, error_messages={"required": _("Choose at least one.")})

    def refuse(self, error: GpucloudError) -> None:
        """Show a refused URL beside its field."""
        if error.code in BESIDE:
            self.add_error(BESIDE[error.code], f"{gettext(error.title)}. {gettext(error.detail)}")
        else:
            super().refuse(error)


class NewWebhookForm(WebhookForm):
    """A new webhook, and its tenant."""

    tenant = one_of(
        _("Tenant"), Tenant.objects.none(), "slug",
        _("Tenant whose events are sent. Cannot be changed later."), required=False,
    )  # fmt: skip
    format = radios(_("Format"), WebhookFormat.choices, initial=WebhookFormat.GPUCLOUD, required=False)
    field_order = ("tenant", "format", "url", "description", "events")

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = administered_tenants(principal)
        field.required = not principal.is_operator
        field.empty_label = gettext("The whole platform: of every tenant") if principal.is_operator else None

    def clean_format(self) -> str:
        """Return the format, or the default."""
        return self.cleaned_data["format"] or WebhookFormat.GPUCLOUD


class ChangeForm(VersionedForm, WebhookForm):
    """The changeable fields of a webhook."""

    def __init__(self, data: Any = None, *, hook: Webhook) -> None:
        super().__init__(data, initial={name: getattr(hook, name) for name in (*SETTABLE, "version")})
        self.hook = hook
        if hook.format in SECRET_URLS:
            self.initial["url"] = ""
            url = self.fields["url"]
            url.required = False
            url.help_text = gettext("It is {0}: a secret, not shown again. Leave this empty to keep it.").format(
                shown_url(hook)
            )

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from the webhook, for the service."""
        values = {name: self.cleaned_data[name] for name in SETTABLE}
        values["events"] = sorted(values["events"])
        values["url"] = values["url"] or self.hook.url
        return {name: value for name, value in values.items() if getattr(self.hook, name) != value}


# Of the list of deliveries; None: all.
STATES: Final = [(None, _("All")), *((one.value, badge(one).label) for one in DeliveryState)]


class DeliveryForm(forms.Form):
    """The filter of a webhook's deliveries, in the URL; links of the page write it."""

    state = forms.ChoiceField(label=_("State"), choices=DeliveryState.choices, required=False)
    kind = forms.ChoiceField(
        label=_("Event"), choices=[(name, name) for name in (*EventKind.values, TEST)], required=False
    )

    @property
    def wanted(self) -> dict[str, str]:
        """`state` and `kind`; an invalid field does not filter."""
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value}
