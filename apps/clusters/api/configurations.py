"""/scheduler-configuration/ and /webhook-configuration/: configuration files for other programs."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster
from apps.clusters.services import configurations
from apps.quotas.api.views import CHANGES, ApiView
from apps.quotas.idempotency import idempotent
from gpucloud.api import shown
from gpucloud.api.serializers import Strict

TLS_FILES = {"ca_file": "caFile", "cert_file": "certFile", "key_file": "keyFile"}
ADDRESS = r"^https?://[^\s/?#]+$"


class ClusterByName(serializers.SlugRelatedField[Cluster]):
    """A cluster by its name."""

    default_error_messages = {"does_not_exist": "There is no cluster {value}."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="name", queryset=Cluster.objects.order_by("name"), **kwargs)


class SchedulerQuestion(Strict):
    """Query of a kube-scheduler configuration."""

    form = serializers.ChoiceField(
        choices=("configuration", "policy"), default="configuration", help_text="`policy`: before Kubernetes 1.23."
    )
    url = serializers.RegexField(
        ADDRESS, default="", allow_blank=True, max_length=500, help_text=_("URL of the extender for kube-scheduler.")
    )
    cluster = ClusterByName(
        required=False, default=None, help_text=_("Cluster whose name becomes part of the path; empty: the first one.")
    )
    by_name = serializers.BooleanField(
        default=False, help_text=_("Send only names of nodes, which is much less data; Kubernetes 1.25 or later.")
    )
    everything = serializers.BooleanField(default=False, help_text=_("Also prioritize, bind and preempt."))
    scheduler_name = serializers.RegexField(
        r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$",
        default="",
        allow_blank=True,
        help_text=_("Name of a second kube-scheduler."),
    )
    ca_file = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=500,
        help_text=_("Certificate authority of the extender, a file on kube-scheduler's machine."),
    )
    cert_file = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=500,
        help_text=_("Certificate of kube-scheduler, if the extender requires one."),
    )
    key_file = serializers.CharField(
        default="", allow_blank=True, max_length=500, help_text=_("Key of that certificate.")
    )

    def service_arguments(self) -> dict[str, Any]:
        """Return the query as arguments of the service."""
        values = {**self.validated_data, "at": self.validated_data["url"]}
        files = {theirs: values.pop(ours) for ours, theirs in TLS_FILES.items()}
        del values["url"]
        return {**values, "tls": {name: file for name, file in files.items() if file}}


class WebhookQuestion(Strict):
    """Query of the webhook configurations."""

    service = serializers.RegexField(
        r"^[-a-z0-9]+/[-a-z0-9]+$", default="", allow_blank=True, help_text=_("NAMESPACE/NAME of their Service.")
    )
    url = serializers.RegexField(
        ADDRESS,
        default="",
        allow_blank=True,
        max_length=500,
        help_text=_("Address of the webhooks, `https://…`; instead of a Service."),
    )
    before_1_28 = serializers.BooleanField(
        default=False, help_text=_("Omit matchConditions: API servers send every pod.")
    )
    hide_gpus = serializers.BooleanField(
        default=False, help_text=_("Also hide a node's GPUs from pods that ask for none, by a further webhook.")
    )
    devices = serializers.BooleanField(
        default=False, help_text=_("Also charge ResourceClaims of Dynamic Resource Allocation at their creation.")
    )
    cluster = ClusterByName(
        required=False, default=None, help_text=_("Cluster that is charged for its ResourceClaims; empty: the first.")
    )


class ConfigurationSerializer(Strict):
    """A configuration file."""

    configuration = serializers.JSONField(help_text="Contents of the file.")


class ConvertedSerializer(Strict):
    """A configuration in its other form."""

    configuration = shown.json()
    left_out = shown.texts("Fields that the other form does not have.")


class WebhooksSerializer(Strict):
    """The two webhook configurations."""

    configurations = serializers.ListField(child=serializers.JSONField(), read_only=True)
    reason = shown.text("Reason why there are none; empty if there are.")


def _parameters(kind: type[Strict]) -> list[OpenApiParameter]:
    types: dict[type, Any] = {serializers.BooleanField: OpenApiTypes.BOOL}
    return [
        OpenApiParameter(name, types.get(type(field), OpenApiTypes.STR), description=str(field.help_text))
        for name, field in kind().fields.items()
    ]


class ConfigurationView(ApiView):
    """Base of these views."""

    read_scope, write_scope = "nodes:read", "nodes:write"
    tagged = False

    def question(self, request: Request, kind: type[Any]) -> Any:
        """Return the validated query. Raises ValidationError."""
        switches = {name for name, field in kind().fields.items() if isinstance(field, serializers.BooleanField)}
        words = {"true": True, "false": False}
        said = request.query_params.dict()
        question = kind(
            data={n: words.get(value.lower(), value) if n in switches else value for n, value in said.items()}
        )
        question.is_valid(raise_exception=True)
        return question


class SchedulerConfiguration(ConfigurationView):
    """kube-scheduler's configuration."""

    operator_methods = CHANGES

    serializer_class: Any = ConfigurationSerializer

    @extend_schema(parameters=_parameters(SchedulerQuestion))
    def get(self, request: Request) -> Response:
        """Show the configuration of kube-scheduler for this extender (operators)."""
        self.principal.require_operator()
        asked = self.question(request, SchedulerQuestion).service_arguments()
        return Response({"configuration": configurations.scheduler(principal=self.principal, **asked)})

    @extend_schema(responses={200: ConvertedSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Convert a Policy from before Kubernetes 1.23 into a KubeSchedulerConfiguration, or back (operators)."""
        self.principal.require_operator()
        document = self.parse_body(request)["configuration"]
        if not isinstance(document, dict):
            raise serializers.ValidationError({"configuration": ["It must be an object."]})
        made, left_out = configurations.convert(principal=self.principal, document=document)
        return Response({"configuration": made, "left_out": left_out})


class WebhookConfiguration(ConfigurationView):
    """The API servers' webhook configurations."""

    serializer_class: Any = WebhooksSerializer

    @extend_schema(parameters=_parameters(WebhookQuestion))
    def get(self, request: Request) -> Response:
        """Show both webhook configurations with the certificate authority to trust (operators)."""
        self.principal.require_operator()
        values = self.question(request, WebhookQuestion).validated_data
        asked = {"service": values["service"], "at": values["url"], "before_1_28": values["before_1_28"]}
        asked |= {name: values[name] for name in ("hide_gpus", "devices", "cluster")}
        try:
            made = configurations.webhooks(principal=self.principal, **asked)
        except configurations.NoAuthority as error:
            return Response({"configurations": [], "reason": error.detail})
        return Response({"configurations": made, "reason": ""})
