"""Forms of the clusters' pages, made from the API's own fields: bounds and help texts are defined once."""

from typing import TYPE_CHECKING, Any

import yaml
from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from apps.clusters.api.clusters import ACCOUNT, ClusterSerializer
from apps.clusters.api.configurations import ADDRESS, TLS_FILES, SchedulerQuestion, WebhookQuestion
from apps.clusters.api.namespaces import LABEL_NAME
from apps.clusters.formats import gpushare
from apps.clusters.models import Cluster, Placement
from apps.console.shell.fields import api_help, choice, one_of, switch
from apps.console.shell.forms import ServiceForm, VersionedForm, name_field
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.tenant import SLUG

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

SETTABLE = ("enabled", "placement", "sync_quotas", "strict", "agent_account")
TEXT = {"class": "form-control", "autocomplete": "off"}
# Browsers would store and offer a password field; the text typed here is never shown again.
KUBECONFIG = {"class": "form-control code", "rows": 8, "autocomplete": "off", "spellcheck": "false"}


def text(
    label: "StrPromise", help_text: "str | StrPromise", *, example: str = "", pattern: str = "", **more: Any
) -> forms.CharField:
    """Return an optional text field."""
    widget = forms.TextInput(attrs={**TEXT, "placeholder": example})
    checks = [RegexValidator(pattern)] if pattern else []
    more = {"required": False, "max_length": 500, **more}
    return forms.CharField(label=label, help_text=help_text, widget=widget, validators=checks, **more)


def kubeconfig(help_text: "str | StrPromise") -> forms.CharField:
    """Return a field for credentials, as kubectl prints them."""
    area = forms.Textarea(attrs=KUBECONFIG)
    return forms.CharField(label=_("Kubeconfig"), required=False, max_length=100_000, help_text=help_text, widget=area)


def payer() -> Any:
    """Return a field for the tenant that pays."""
    tenants, help_text = Tenant.objects.order_by("slug"), _("It is charged for their pods from now on.")
    return one_of(_("Tenant"), tenants, "slug", help_text, empty_label=_("Choose one"))


class SettingsForm(ServiceForm):
    """The settings of a cluster: placement of its pods and its quotas."""

    placement = choice(
        _("Placement"), [(name, name) for name in Placement.values], api_help(ClusterSerializer, "placement")
    )
    sync_quotas = switch(_("Write quotas"), api_help(ClusterSerializer, "sync_quotas"))
    strict = switch(_("Strict"), api_help(ClusterSerializer, "strict"))
    agent_account = text(
        _("Agents’ account"),
        api_help(ClusterSerializer, "agent_account"),
        pattern=ACCOUNT,
        max_length=127,
        example="gpucloud-agents/gpucloud-agent",
    )


class NewClusterForm(SettingsForm):
    """A cluster that is not connected yet."""

    name = name_field("prod", api_help(ClusterSerializer, "name"), validators=[RegexValidator(SLUG)])
    pool = one_of(
        _("Pool"), Pool.objects.order_by("name"), "name", api_help(ClusterSerializer, "pool"),
        empty_label=_("Choose one"),
    )  # fmt: skip
    in_cluster = switch(_("From within"), api_help(ClusterSerializer, "in_cluster"))
    kubeconfig = kubeconfig(api_help(ClusterSerializer, "kubeconfig"))
    field_order = ("name", "pool", "kubeconfig", "in_cluster")

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service."""
        return self.cleaned_data | {"kubeconfig": self.cleaned_data["kubeconfig"] or None}


class ClusterForm(VersionedForm, SettingsForm):
    """The changeable settings of a cluster."""

    enabled = switch(_("Watched"), api_help(ClusterSerializer, "enabled"))
    kubeconfig = kubeconfig(_("Fill in to replace the credentials. Empty: unchanged."))
    field_order = (*SETTABLE, "kubeconfig")

    def __init__(self, data: Any = None, *, cluster: Cluster) -> None:
        super().__init__(data, initial={name: getattr(cluster, name) for name in (*SETTABLE, "version")})
        self.cluster = cluster
        if cluster.in_cluster:
            del self.fields["kubeconfig"]

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that differ from the cluster, for the service."""
        given = self.cleaned_data.get("kubeconfig")
        return self.changes_of(self.cluster, SETTABLE) | ({"kubeconfig": given} if given else {})


class BindingForm(ServiceForm):
    """A binding of namespaces to the tenant that pays for them."""

    namespace = text(
        _("Namespace"), _("The name of one namespace."), pattern=LABEL_NAME, max_length=63, example="research"
    )
    labels = text(
        _("Or all with labels"), _("Such as team=vision, stage=prod. A name wins, then the oldest."), max_length=2000
    )
    tenant = payer()

    def clean_labels(self) -> dict[str, str] | None:
        """Return the labels as a selector; None without labels."""
        labels = [part.strip() for part in self.cleaned_data["labels"].split(",") if part.strip()]
        parts = dict(part.split("=", 1) for part in labels if "=" in part)
        if len(parts) < len(labels) or not all(name.strip() for name in parts):
            raise ValidationError(_("Each label is NAME=VALUE, and each name appears once."))
        return {name.strip(): value.strip() for name, value in parts.items()} or None

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service."""
        given = self.cleaned_data
        return {"namespace": given["namespace"] or None, "selector": given["labels"], "tenant": given["tenant"]}


class RebindForm(VersionedForm):
    """Another tenant for a binding."""

    tenant = payer()


class ImportForm(ServiceForm):
    """The units of the objects to import."""

    gpushare_unit_mib = forms.TypedChoiceField(
        label=_("One aliyun.com/gpu-mem is"),
        coerce=int,
        choices=[(gpushare.GIB, "1 GiB"), (1, "1 MiB")],
        help_text=_("gpushare’s device plugin decides; without gpushare it does not matter."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )


class SchedulerForm(forms.Form):
    """The parameters of kube-scheduler's configuration, in the URL."""

    form = choice(
        _("For"),
        [("configuration", _("Kubernetes 1.23 and later")), ("policy", _("Kubernetes before 1.23"))],
        required=False,
    )
    url = text(_("Extender at"), api_help(SchedulerQuestion, "url"), pattern=ADDRESS, example="https://gpucloud:3456")
    cluster = forms.ModelChoiceField(
        Cluster.objects.order_by("name"),
        to_field_name="name",
        required=False,
        label=_("Cluster"),
        empty_label=_("The first one"),
        help_text=api_help(SchedulerQuestion, "cluster"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    scheduler_name = text(_("Scheduler’s name"), api_help(SchedulerQuestion, "scheduler_name"), pattern=LABEL_NAME)
    by_name = switch(_("Nodes by name"), api_help(SchedulerQuestion, "by_name"))
    everything = switch(_("Everything"), api_help(SchedulerQuestion, "everything"))
    ca_file = text(
        _("Authority’s file"), api_help(SchedulerQuestion, "ca_file"), example="/etc/kubernetes/gpucloud/ca.crt"
    )
    cert_file = text(_("Certificate’s file"), api_help(SchedulerQuestion, "cert_file"))
    key_file = text(_("Key’s file"), api_help(SchedulerQuestion, "key_file"))

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        values = dict(self.cleaned_data)
        files = {theirs: values.pop(ours) for ours, theirs in TLS_FILES.items()}
        at, form = values.pop("url"), values.pop("form") or "configuration"
        return {**values, "form": form, "at": at, "tls": {name: file for name, file in files.items() if file}}


class WebhookForm(forms.Form):
    """The address at which API servers reach the webhooks, in the URL."""

    service = text(_("Service"), api_help(WebhookQuestion, "service"), pattern=r"^[-a-z0-9]+/[-a-z0-9]+$")
    webhook_url = text(_("Or address"), api_help(WebhookQuestion, "url"), pattern=r"^https://[^\s/?#]+$")
    before_1_28 = switch(_("Before 1.28"), api_help(WebhookQuestion, "before_1_28"))
    hide_gpus = switch(_("Hide GPUs"), api_help(WebhookQuestion, "hide_gpus"))
    devices = switch(_("ResourceClaims"), api_help(WebhookQuestion, "devices"))


class ConvertForm(ServiceForm):
    """A configuration to convert."""

    document = forms.CharField(
        label=_("Policy or KubeSchedulerConfiguration"),
        max_length=100_000,
        help_text=_("YAML or JSON; the answer is the other form of it."),
        widget=forms.Textarea(attrs=KUBECONFIG),
    )

    def clean_document(self) -> dict[str, Any]:
        """Return the parsed file."""
        try:
            document = yaml.safe_load(self.cleaned_data["document"])
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValidationError(_("It is not YAML that can be read.")) from error
        if not isinstance(document, dict):
            raise ValidationError(_("It is not a configuration: it has no kind."))
        return document
