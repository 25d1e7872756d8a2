"""Serializers of this app's resources."""

import re
from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.nodes.models import Node
from apps.nodes.services.conditions import of_node
from apps.quotas.api.serializers import PoolByName
from apps.quotas.models.tenant import SLUG
from gpucloud.api.serializers import Strict

LABEL_NAME = r"^[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?\Z"
LABEL_VALUE = r"^([a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?)?\Z"
LABEL_WRONG = _("Letters, digits, dots, dashes and underscores, 63 at most; the first and the last a letter or digit.")
MOST_LABELS = 32
RESERVED = {"enrol"}  # a route below /nodes/


class LabelsField(serializers.DictField):
    """Labels of a node, or labels that a claim's node must have."""

    child = serializers.RegexField(
        LABEL_VALUE,
        help_text="Letters, digits, dots, dashes, underscores; 63 at most.",
        error_messages={"invalid": LABEL_WRONG},
    )

    def to_internal_value(self, data: Any) -> dict[str, str]:
        labels: dict[str, str] = super().to_internal_value(data)
        if wrong := [name for name in labels if not re.match(LABEL_NAME, name)]:
            raise serializers.ValidationError(f"{wrong[0][:70]!r} is no name of a label. {LABEL_WRONG}")
        if len(labels) > MOST_LABELS:
            raise serializers.ValidationError(f"At most {MOST_LABELS} labels.")
        return labels


class ConditionSerializer(Strict):
    """A condition, as in Kubernetes."""

    type = serializers.CharField(read_only=True, help_text="`ClockInSync`: good when its status is `True`.")
    status = serializers.CharField(read_only=True, help_text="`True`, `False` or `Unknown`.")
    reason = serializers.CharField(read_only=True, help_text="One word; `Xid79` for an XID error.")
    message = serializers.CharField(read_only=True)
    since = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Time by the node's clock.")
    unschedulable = serializers.BooleanField(read_only=True, help_text="No new claims while it holds.")


class CheckSerializer(Strict):
    """A result of the agent's self-check."""

    name = serializers.CharField(read_only=True)
    state = serializers.ChoiceField(
        ["ok", "warning", "failed"], read_only=True, help_text="`failed`: limits would not hold."
    )
    detail = serializers.CharField(read_only=True, help_text="Finding.")
    cure = serializers.CharField(read_only=True, allow_null=True, help_text="Instruction how to fix it.")


class DriftSerializer(Strict):
    """A file or limit of a claim that differs from what the agent wrote."""

    kind = serializers.CharField(
        read_only=True,
        help_text="`files-lost`, `usage-damaged`, `limits-changed`, `limits-unreadable`, `directory-unknown` or "
        "`library-other`.",
    )
    claim_uid = serializers.UUIDField(read_only=True)
    detail = serializers.CharField(read_only=True)
    mendable = serializers.BooleanField(read_only=True, help_text="True if the agent can repair it.")
    since = serializers.FloatField(read_only=True, help_text="Seconds since 1970, by the node's clock.")


class NodeSerializer(Strict):
    """A node."""

    uid = serializers.UUIDField(read_only=True)
    name = serializers.RegexField(SLUG)
    pool = PoolByName()
    state = serializers.CharField(
        read_only=True,
        help_text="`awaiting-agent`, `ready`, `cordoned`, `draining`, `fenced`, `returning`, `unhealthy` or `lost`.",
    )
    cordoned = serializers.BooleanField(default=False, help_text="Takes no new claims; those on it stay.")
    draining_at = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="Time since when its claims get notice and leave; ends with the cordon.",
    )
    labels = LabelsField(
        required=False, help_text="Labels for the `node_selector` of claims; a change replaces all of them."
    )
    unhealthy = serializers.CharField(read_only=True, help_text="Reason why it accepts no new claims; empty: healthy.")
    fenced_at = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="Time since when it accepts no new claims; an operator lifts the fence.",
    )
    fenced_why = serializers.CharField(read_only=True)
    conditions = serializers.SerializerMethodField(help_text="Conditions of the node itself; `Ready` first.")
    repair_drift = serializers.BooleanField(
        default=True,
        help_text=_("Repair foreign changes on the machine at once; else on request."),
    )
    drifted = serializers.SerializerMethodField(help_text="Number of such changes that are not repaired.")
    simulated = serializers.BooleanField(read_only=True)
    arbiter = serializers.BooleanField(
        read_only=True, help_text="True if its agent has an arbiter, without which the claims of a GPU get no turns."
    )
    hostname = serializers.CharField(read_only=True)
    agent_version = serializers.CharField(read_only=True)
    driver_version = serializers.CharField(read_only=True)
    last_seen_at = serializers.DateTimeField(read_only=True, allow_null=True)
    checks = CheckSerializer(
        many=True,
        read_only=True,
        help_text="The agent's self-check when it last connected; operators see it. `agent check` runs it anew.",
    )
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def get_drifted(self, node: Node) -> int:
        """Return the number of drifts; the drift route lists them."""
        return len(node.drifts)

    @extend_schema_field(ConditionSerializer(many=True))
    def get_conditions(self, node: Node) -> Any:
        """Return the conditions of the node, without those of its GPUs."""
        return ConditionSerializer(of_node(node), many=True).data

    def to_representation(self, instance: Node) -> dict[str, Any]:
        """Hide the self-check from users other than operators."""
        shown: dict[str, Any] = super().to_representation(instance)
        if not self.context["request"].user.is_operator:
            shown["checks"] = []
        return shown


class NewNodeSerializer(NodeSerializer):
    """Fields of a new node."""

    cordoned = serializers.BooleanField(read_only=True)
    repair_drift = serializers.BooleanField(read_only=True)

    def validate_name(self, value: str) -> str:
        """Refuse names that are routes."""
        if value in RESERVED:
            raise serializers.ValidationError(f"{value} is reserved.")
        return value


class NodeWithEnrolmentSerializer(NodeSerializer):
    """A new node with its enrolment token, which is shown only once."""

    enrolment_token = serializers.CharField(read_only=True, help_text="Valid once, for 24 hours.")
    command = serializers.CharField(
        read_only=True,
        help_text="Command for the machine's root: fetches the agent, verifies its digest, enrols.",
    )


class NodeChangeSerializer(NodeSerializer):
    """Changeable fields of a node."""

    name = serializers.CharField(read_only=True)  # type: ignore[assignment]
    cordoned = serializers.BooleanField()
    repair_drift = serializers.BooleanField()


KEY_DIGEST = r"^[0-9a-f]{64}$"


class EnrolSerializer(Strict):
    """An agent's enrolment."""

    token = serializers.CharField(max_length=200, write_only=True, help_text="The one-time token, `gpe_…`.")
    key_digest = serializers.RegexField(
        KEY_DIGEST, write_only=True, help_text="SHA-256 of the secret that the agent made for itself."
    )
    node_uid = serializers.UUIDField(source="uid", read_only=True)
    node_name = serializers.CharField(source="name", read_only=True)


class GpuHealthSerializer(Strict):
    """The latest health readings of a GPU. Null: its card or driver does not have this reading."""

    reported_at = serializers.DateTimeField(read_only=True, help_text="Agents report every 30 seconds.")
    temperature_celsius = serializers.FloatField(read_only=True, allow_null=True)
    ecc_corrected = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Memory errors that ECC corrected since the driver was loaded."
    )
    ecc_uncorrected = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Memory errors that it could not correct."
    )
    last_xid = serializers.IntegerField(read_only=True, allow_null=True, help_text="The last XID error, of any cause.")
    last_xid_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Time by the node's clock.")
    last_xid_meaning = serializers.CharField(read_only=True)
    last_xid_cure = serializers.CharField(
        read_only=True, help_text="`program` (a fix of the program), `time` or `reset`; empty: none, or not known."
    )
    sm_active_percent = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Part of the SMs with work, mean of 30 seconds (GPM)."
    )
    tensor_active_percent = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Part of the time with tensor operations (GPM)."
    )
    dram_active_percent = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Used part of the memory bandwidth (GPM)."
    )


class GpuProcessSerializer(Strict):
    """A process on a GPU."""

    pid = serializers.IntegerField(read_only=True)
    command = serializers.CharField(read_only=True, help_text="`?`: the agent cannot see the process.")
    memory_mib = serializers.IntegerField(read_only=True, allow_null=True)
    claim = serializers.UUIDField(read_only=True, allow_null=True, help_text="Null: it belongs to no claim.")


class GpuProcessesSerializer(Strict):
    """The processes on a GPU, as last reported."""

    reported_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Null: never.")
    processes = GpuProcessSerializer(many=True, read_only=True)


class GpuSerializer(Strict):
    """A GPU and its allocated share."""

    uuid = serializers.CharField(read_only=True)
    node = serializers.CharField(source="node.name", read_only=True)
    pool = serializers.CharField(source="node.pool.name", read_only=True)
    index = serializers.IntegerField(read_only=True)
    model = serializers.CharField(read_only=True)
    state = serializers.CharField(read_only=True, help_text="`missing`, `cordoned`, `unhealthy` or `ready`.")
    present = serializers.BooleanField(read_only=True)
    cordoned = serializers.BooleanField(help_text="Takes no new claims; those on it stay.")
    unhealthy = serializers.CharField(read_only=True, help_text="Reason why it accepts no new claims; empty: healthy.")
    conditions = ConditionSerializer(many=True, read_only=True)
    health = GpuHealthSerializer(read_only=True, allow_null=True, help_text="Null: never reported.")
    memory_mib = serializers.IntegerField(read_only=True)
    memory_used_mib = serializers.IntegerField(read_only=True, help_text="Allocated to assignments.")
    memory_free_mib = serializers.IntegerField(read_only=True)
    core_used = serializers.IntegerField(read_only=True, help_text="Percent allocated to assignments.")
    core_free = serializers.IntegerField(read_only=True)
    core_outside = serializers.IntegerField(
        read_only=True, help_text="Percent that pods use without a claim, or before they have one; not free."
    )
    memory_outside_mib = serializers.IntegerField(
        read_only=True, help_text="MiB that pods use without a claim, or before they have one; not free."
    )
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)
