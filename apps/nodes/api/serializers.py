"""Serializers of this app's resources."""

import re
from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.nodes.models import Node
from apps.nodes.models.gpu import Gpu
from apps.nodes.services.conditions import of_node
from apps.quotas.api.serializers import PoolByName
from apps.quotas.models.tenant import SLUG
from gpucloud.api import shown
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns

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

    type = shown.text("`ClockInSync`: good when its status is `True`.")
    status = shown.text("`True`, `False` or `Unknown`.")
    reason = shown.text("One word; `Xid79` for an XID error.")
    message = shown.text()
    since = shown.time("Time by the node's clock.", null=True)
    unschedulable = shown.flag("No new claims while it holds.")


class CheckSerializer(Strict):
    """A result of the agent's self-check."""

    name = shown.text()
    state = shown.choice(["ok", "warning", "failed"], "`failed`: limits would not hold.")
    detail = shown.text("Finding.")
    cure = shown.text("Instruction how to fix it.", null=True)


class DriftSerializer(Strict):
    """A file or limit of a claim that differs from what the agent wrote."""

    kind = shown.text(
        "`files-lost`, `usage-damaged`, `limits-changed`, `limits-unreadable`, `directory-unknown` or `library-other`."
    )
    claim_uid = shown.uid()
    detail = shown.text()
    mendable = shown.flag("True if the agent can repair it.")
    since = shown.number("Seconds since 1970, by the node's clock.")


class NodeSerializer(Strict):
    """A node."""

    uid = shown.uid()
    name = serializers.RegexField(SLUG)
    pool = PoolByName()
    state = shown.text(
        "`awaiting-agent`, `ready`, `cordoned`, `draining`, `fenced`, `returning`, `unhealthy` or `lost`."
    )
    cordoned = serializers.BooleanField(default=False, help_text="Takes no new claims; those on it stay.")
    draining_at = shown.time("Time since when its claims get notice and leave; ends with the cordon.", null=True)
    labels = LabelsField(
        required=False, help_text="Labels for the `node_selector` of claims; a change replaces all of them."
    )
    unhealthy = shown.text("Reason why it accepts no new claims; empty: healthy.")
    fenced_at = shown.time("Time since when it accepts no new claims; an operator lifts the fence.", null=True)
    fenced_why = shown.text()
    conditions = serializers.SerializerMethodField(help_text="Conditions of the node itself; `Ready` first.")
    repair_drift = serializers.BooleanField(
        default=True,
        help_text=_("Repair foreign changes on the machine at once; else on request."),
    )
    drifted = serializers.SerializerMethodField(help_text="Number of such changes that are not repaired.")
    simulated = shown.flag()
    arbiter = shown.flag("True if its agent has an arbiter, without which the claims of a GPU get no turns.")
    backends = shown.texts("Back ends that its agent can serve beside turns.")
    can_suspend = shown.flag("True if its driver can suspend claims.")
    can_move = shown.flag("True if its claims can be moved between its GPUs of one model.")
    can_restart = shown.flag("True if claims can be moved to and from it by a restart of their programs.")
    can_carry = shown.flag("True if running programs of its claims can be carried to and from other such nodes.")
    jobs = shown.flag("True if its agent can start the programs of jobs.")
    remote = serializers.SerializerMethodField(help_text="True if programs on other machines can use its claims.")
    images = shown.flag("True if its agent can start them in containers of an image.")
    host_memory_mib = shown.integer("Its memory that suspended claims may take together.")
    host_memory_used_mib = shown.integer("The part of it that suspended claims take.")
    columns_1 = Columns(Node, "hostname agent_version driver_version last_seen_at")
    checks = CheckSerializer(
        many=True,
        read_only=True,
        help_text="The agent's self-check when it last connected; operators see it. `agent check` runs it anew.",
    )
    changed = Columns(Node, "version created_at updated_at")

    def get_remote(self, node: Node) -> bool:
        """Return whether it has an address for clients, which only they are told."""
        return node.remote is not None

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

    cordoned = shown.flag()
    repair_drift = shown.flag()

    def validate_name(self, value: str) -> str:
        """Refuse names that are routes."""
        if value in RESERVED:
            raise serializers.ValidationError(f"{value} is reserved.")
        return value


class NodeWithEnrolmentSerializer(NodeSerializer):
    """A new node with its enrolment token, which is shown only once."""

    enrolment_token = shown.text("Valid once, for 24 hours.")
    command = shown.text("Command for the machine's root: fetches the agent, verifies its digest, enrols.")


class NodeChangeSerializer(NodeSerializer):
    """Changeable fields of a node."""

    name = shown.text()
    cordoned = serializers.BooleanField()
    repair_drift = serializers.BooleanField()


KEY_DIGEST = r"^[0-9a-f]{64}$"


class EnrolSerializer(Strict):
    """An agent's enrolment."""

    token = serializers.CharField(max_length=200, write_only=True, help_text="The one-time token, `gpe_…`.")
    key_digest = serializers.RegexField(
        KEY_DIGEST, write_only=True, help_text="SHA-256 of the secret that the agent made for itself."
    )
    node_uid = shown.uid(source="uid")
    node_name = shown.text(source="name")


class GpuHealthSerializer(Strict):
    """The latest health readings of a GPU. Null: its card or driver does not have this reading."""

    reported_at = shown.time("Agents report every 30 seconds.")
    temperature_celsius = shown.number(null=True)
    ecc_corrected = shown.integer("Memory errors that ECC corrected since the driver was loaded.", null=True)
    ecc_uncorrected = shown.integer("Memory errors that it could not correct.", null=True)
    last_xid = shown.integer("The last XID error, of any cause.", null=True)
    last_xid_at = shown.time("Time by the node's clock.", null=True)
    last_xid_meaning = shown.text()
    last_xid_cure = shown.text("`program` (a fix of the program), `time` or `reset`; empty: none, or not known.")
    sm_active_percent = shown.number("Part of the SMs with work, mean of 30 seconds (GPM).", null=True)
    tensor_active_percent = shown.number("Part of the time with tensor operations (GPM).", null=True)
    dram_active_percent = shown.number("Used part of the memory bandwidth (GPM).", null=True)


class GpuProcessSerializer(Strict):
    """A process on a GPU."""

    pid = shown.integer()
    command = shown.text("`?`: the agent cannot see the process.")
    memory_mib = shown.integer(null=True)
    claim = shown.uid("Null: it belongs to no claim.", null=True)


class GpuProcessesSerializer(Strict):
    """The processes on a GPU, as last reported."""

    reported_at = shown.time("Null: never.", null=True)
    processes = GpuProcessSerializer(many=True, read_only=True)


class MigProfileSerializer(Strict):
    """A MIG profile: a kind of instances that a GPU in MIG mode can be divided into."""

    name = shown.text()
    compute_slices = shown.integer()
    memory_mib = shown.integer()
    size = shown.integer("The memory slices of an instance.")
    starts = serializers.ListField(
        child=serializers.IntegerField(), read_only=True, help_text="The memory slices at which one may begin."
    )


class MigInstanceSerializer(Strict):
    """A MIG instance that no claim has: somebody made it on the machine."""

    profile = shown.text()
    start = shown.integer()
    size = shown.integer()


class MigSerializer(Strict):
    """A GPU in MIG mode. The instances of claims are their assignments."""

    profiles = MigProfileSerializer(many=True, read_only=True)
    foreign = MigInstanceSerializer(many=True, read_only=True)


class GpuSerializer(Strict):
    """A GPU and its allocated share."""

    uuid = shown.text()
    node = shown.text(source="node.name")
    pool = shown.text(source="node.pool.name")
    columns_1 = Columns(Gpu, "index model")
    state = shown.text("`missing`, `cordoned`, `unhealthy` or `ready`.")
    present = shown.flag()
    cordoned = serializers.BooleanField(help_text="Takes no new claims; those on it stay.")
    unhealthy = shown.text("Reason why it accepts no new claims; empty: healthy.")
    conditions = ConditionSerializer(many=True, read_only=True)
    health = GpuHealthSerializer(read_only=True, allow_null=True, help_text="Null: never reported.")
    mig = MigSerializer(read_only=True, allow_null=True, help_text="Null: the GPU is not in MIG mode.")
    memory_mib = shown.integer()
    backend = shown.text("How its claims share it: its pool's back end when the first of them was placed.")
    mps_group = shown.text("Which of its claims share an MPS server, with the back end `mps`: `tenant` or `pool`.")
    memory_used_mib = shown.integer("Allocated to assignments.")
    memory_free_mib = shown.integer()
    core_used = shown.integer("Percent allocated to assignments.")
    core_free = shown.integer()
    core_outside = shown.integer("Percent that pods use without a claim, or before they have one; not free.")
    memory_outside_mib = shown.integer("MiB that pods use without a claim, or before they have one; not free.")
    changed = Columns(Gpu, "version created_at updated_at")
