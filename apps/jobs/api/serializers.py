"""Serializers of jobs."""

import re
from typing import Any
from urllib.parse import urlsplit

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agent import wire
from apps.jobs.models import (
    IDLE_MINUTES,
    MOST_ARGUMENTS,
    MOST_DEPENDENCIES,
    MOST_GIT_REF,
    MOST_GIT_URL,
    MOST_IDLE_MINUTES,
    MOST_LETTERS_OF_ARGUMENT,
    MOST_OF_ARRAY,
    MOST_RETRIES,
    MOST_VARIABLES,
    Job,
    JobArray,
    JobDependency,
    JobFiles,
    JobKind,
    JobState,
)
from apps.jobs.services.arrays import ENDED, count_states, state_of
from apps.jobs.services.notebooks import DEFAULT_COMMAND
from apps.nodes.api.serializers import LabelsField
from apps.quotas.api.serializers import PoolByName, TenantBySlug
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.row import MOST_NAME
from apps.scheduling.api.serializers import NEEDED_HELP, ClassField, ReasonSerializer, share_field
from apps.scheduling.models import ClaimState
from apps.scheduling.models.choices import OverQuota
from gpucloud.api import shown
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# The launch sets these, so that the claim's limits hold; it would overwrite what a job says.
OURS = re.compile(r"GPUCLOUD_.*|LD_PRELOAD|CUDA_VISIBLE_DEVICES|CUDA_MPS_.*|NVIDIA_VISIBLE_DEVICES")


SCHEMES = ("https", "http", "ssh", "git", "file")
PRINTABLE = re.compile(r"[!-~]+")
# A branch, a tag or a commit, and no option of git.
REFERENCE = r"^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9._/+@-]*\Z"


class Argument(serializers.CharField):
    """A text of a command or of its environment, as it is."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_blank=True, trim_whitespace=False, max_length=MOST_LETTERS_OF_ARGUMENT, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        """Return the text. Numbers are refused: 1.0 and 1 would be the same to the framework."""
        if not isinstance(data, str):
            raise serializers.ValidationError("Must be a string.")
        return super().to_internal_value(data)


class GitUrlField(serializers.CharField):
    """The URL of a repository, without credentials: job and audit log show it."""

    def __init__(self, **kwargs: Any) -> None:
        text = "A repository that the run clones into its working directory before the command. Null: none."
        common: dict[str, Any] = {"max_length": MOST_GIT_URL, "allow_null": True, "default": None, "help_text": text}
        super().__init__(**common | kwargs)

    def to_internal_value(self, data: Any) -> str:
        """Return the URL. Refuse other schemes, and names and passwords in it."""
        url = super().to_internal_value(data)
        try:
            parts = urlsplit(url)
            has_user, has_password = parts.username is not None, parts.password is not None
        except ValueError as error:
            raise serializers.ValidationError("This is no URL.") from error
        if parts.scheme not in SCHEMES or not PRINTABLE.fullmatch(url) or not (parts.netloc or parts.scheme == "file"):
            raise serializers.ValidationError(f"Give a URL with one of: {', '.join(f'{one}://' for one in SCHEMES)}.")
        if has_password or (has_user and parts.scheme != "ssh"):
            raise serializers.ValidationError(
                "A URL with a name or a password is refused, because everybody reads it: set GIT_USERNAME and "
                "GIT_PASSWORD in the job's environment."
            )
        return url


def _uids(text: str) -> serializers.ListField:
    """Return a field of uids of jobs and arrays."""
    return serializers.ListField(
        child=serializers.UUIDField(), max_length=MOST_DEPENDENCIES, default=list, write_only=True, help_text=text
    )


class DependencySerializer(Strict):
    """A job, or an array, for whose end a job waits."""

    uid = serializers.SerializerMethodField()
    name = serializers.SerializerMethodField()
    is_array = serializers.SerializerMethodField(help_text="True: it waits for all jobs of an array.")
    any_end = shown.flag("True: however it ends; false: only for its success.")

    def get_uid(self, one: JobDependency) -> str:
        """Return the uid of the job or the array."""
        return str((one.on or one.on_array).uid)  # type: ignore[union-attr]

    def get_name(self, one: JobDependency) -> str:
        """Return its name."""
        return (one.on or one.on_array).name  # type: ignore[union-attr]

    def get_is_array(self, one: JobDependency) -> bool:
        """Return whether it is an array."""
        return one.on is None


class JobSerializer(Strict):
    """A job: a command that a node's agent starts under a claim of its own."""

    uid = shown.uid()
    tenant = TenantBySlug()
    name = serializers.CharField(max_length=MOST_NAME, default="unnamed")
    kind = serializers.ChoiceField(
        choices=JobKind.choices, default=JobKind.JOB, help_text="A `notebook` is a job whose program is Jupyter."
    )
    command = serializers.ListField(
        child=Argument(),
        max_length=MOST_ARGUMENTS,
        default=list,
        help_text="The program and its arguments; no shell reads them. Of a notebook: the program `jupyter`, by its "
        "path if it is elsewhere, and options of Jupyter's server; `jupyter` unless given.",
    )
    idle_minutes = StrictInteger(
        min_value=1,
        max_value=MOST_IDLE_MINUTES,
        allow_null=True,
        required=False,
        help_text="A notebook ends when no kernel was busy and nobody was connected to one for so long; "
        f"{IDLE_MINUTES} unless given. Null: it does not.",
    )
    idle_since = shown.time("When a notebook was last used; null: not known.", null=True)
    environment = serializers.DictField(
        child=Argument(),
        default=dict,
        write_only=True,
        help_text="Variables beside those of the claim. Answers show their names only.",
    )
    environment_names = serializers.SerializerMethodField(help_text="The names of the variables.")
    time_limit_seconds = StrictInteger(
        min_value=1,
        max_value=MOST[ClaimField.TIME_LIMIT_SECONDS] // (MOST_RETRIES + 1) - 60,
        allow_null=True,
        default=None,
        help_text="Each run ends after this time: SIGTERM, ten seconds later SIGKILL. Null: no limit.",
    )
    retries = StrictInteger(
        min_value=0,
        max_value=MOST_RETRIES,
        default=0,
        help_text="How often it runs again after a failure. A preempted run is repeated in any case.",
    )
    image = serializers.RegexField(
        wire.IMAGE,
        max_length=wire.MAX_IMAGE,
        allow_null=True,
        default=None,
        error_messages={"invalid": "Name an image with its registry, like registry.example.com/team/train:2."},
        help_text="The container image in which the command runs, on nodes that run images. Null: the node as it is.",
    )
    image_digest = shown.text("What that image was in its present or last run.", null=True)
    files = serializers.UUIDField(
        source="files.uid",
        allow_null=True,
        default=None,
        help_text="The uid of uploaded files (`POST /job-files/`), unpacked in its working directory. Null: none.",
    )
    git_url = GitUrlField()
    git_ref = serializers.RegexField(
        REFERENCE,
        max_length=MOST_GIT_REF,
        allow_null=True,
        default=None,
        help_text="The branch, tag or commit to clone. Null: the repository's own choice.",
    )
    after = _uids(
        "It starts once these jobs, or arrays, of its tenant have succeeded; it fails if one of them does not."
    )
    after_any = _uids("It starts once these jobs, or arrays, of its tenant have ended, however they end.")
    array_size = StrictInteger(
        min_value=1,
        max_value=MOST_OF_ARRAY,
        allow_null=True,
        default=None,
        source="array.size",
        help_text="Make so many jobs, an array: each has its index, from 0, in GPUCLOUD_ARRAY_INDEX. Null: one job.",
    )
    at_once = StrictInteger(
        min_value=1,
        max_value=MOST_OF_ARRAY,
        allow_null=True,
        default=None,
        source="array.at_once",
        help_text="How many jobs of the array have claims at a time. Null: all.",
    )
    array = shown.uid("The array of which it is a part.", source="array.uid", null=True)
    array_index = shown.integer(null=True)
    pool = PoolByName(allow_null=True, default=None, help_text="Null: the pool `default`.")
    gpu_count = share_field(ClaimField.GPU_COUNT, "1 unless given.", source="share.gpu_count")
    core_request = share_field(
        ClaimField.CORE_REQUEST, f"Percent of each GPU, guaranteed. {NEEDED_HELP}", source="share.core_request"
    )
    core_limit = share_field(
        ClaimField.CORE_LIMIT, "Percent, the ceiling; core_request unless given.", source="share.core_limit"
    )
    memory_mib = share_field(ClaimField.MEMORY_MIB, f"On each GPU. {NEEDED_HELP}", source="share.memory_mib")
    gpu_model = serializers.CharField(
        source="share.gpu_model",
        max_length=200,
        allow_null=True,
        default=None,
        help_text="The model as NVML names it; several joined by `|`: any of them.",
    )
    node_selector = LabelsField(
        source="share.node_selector", required=False, help_text="Labels that its node must have, all of them."
    )
    priority = StrictInteger(
        source="share.priority", min_value=-1000, max_value=1000, default=0, help_text="Higher goes first."
    )
    when_over_quota = serializers.ChoiceField(
        source="share.when_over_quota", choices=OverQuota.choices, default=OverQuota.REFUSE
    )
    claim = shown.uid(
        "The claim under which it runs; it is released with the job's end. Null: it waits without one.",
        source="claim.uid",
        null=True,
    )
    claim_state = shown.choice(ClaimState.choices, source="claim.state", null=True)
    reasons = ReasonSerializer(
        source="share.reasons", many=True, read_only=True, help_text="Why its claim waits, or how it ended."
    )
    waits_for = DependencySerializer(source="dependencies", many=True, read_only=True)
    state = shown.choice(JobState.choices)
    exit_code = shown.integer("Of its last run; 128 and the signal if one ended it. Null: none is known.", null=True)
    columns_1 = Columns(Job, "reason stop_requested_at")
    node = shown.text("The node of its present or last run.", null=True, source="run_node")
    attempt = shown.integer("1, and 1 more for each retry.")
    runs = shown.integer("How often it was started, with runs that were preempted.")
    output_bytes = shown.integer("The output of its present or last run that is stored.")
    dropped_bytes = shown.integer("The output of this run that was not kept.")
    columns_2 = Columns(Job, "started_at ended_at created_by created_at updated_at version")
    class_ = ClassField(source="share.best_effort", required=False)

    def get_environment_names(self, job: Any) -> list[str]:
        """Return the names of its variables."""
        return sorted(job.environment)

    def validate_command(self, value: list[str]) -> list[str]:
        """Refuse a command that names no program."""
        if value and not value[0].strip():
            raise serializers.ValidationError("The first argument names the program: it must not be empty.")
        return value

    def validate_environment(self, value: dict[str, str]) -> dict[str, str]:
        """Refuse wrong names, and those that the launch sets."""
        if len(value) > MOST_VARIABLES:
            raise serializers.ValidationError(f"{MOST_VARIABLES} variables at most.")
        for name in value:
            if not VARIABLE.fullmatch(name):
                raise serializers.ValidationError(f"{name!r} is no name of a variable.")
            if OURS.fullmatch(name):
                raise serializers.ValidationError(f"{name} is set by the launch: the claim's limits need it.")
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check limit against request."""
        self._fit_kind(attrs)
        claim = attrs["share"]
        if claim.get("core_limit", 100) < claim.get("core_request", 0):
            raise serializers.ValidationError({"core_limit": ["Must not be below core_request."]})
        attrs["files"] = attrs["files"]["uid"]
        if attrs["files"] is not None and attrs["git_url"] is not None:
            raise serializers.ValidationError({"git_url": ["Give files or a git URL, not both."]})
        if attrs["image"] is not None and (attrs["files"] is not None or attrs["git_url"] is not None):
            raise serializers.ValidationError(
                {"image": ["A container brings its own files: leave files and git_url out."]}
            )
        if attrs["git_ref"] is not None and attrs["git_url"] is None:
            raise serializers.ValidationError({"git_ref": ["This is for a clone: give git_url, too."]})
        array = attrs.pop("array", {})
        attrs |= {"array_size": array.get("size"), "at_once": array.get("at_once")}
        if attrs["at_once"] is not None and attrs["array_size"] is None:
            raise serializers.ValidationError({"at_once": ["This is for arrays: give array_size, too."]})
        return attrs

    def _fit_kind(self, attrs: dict[str, Any]) -> None:
        """Fill in what a notebook has unless given, and refuse what its kind cannot have."""
        if attrs["kind"] == JobKind.NOTEBOOK:
            attrs["command"] = attrs["command"] or list(DEFAULT_COMMAND)
            attrs.setdefault("idle_minutes", IDLE_MINUTES)
            if "array" in attrs and attrs["array"].get("size") is not None:
                raise serializers.ValidationError({"array_size": ["A notebook is one job: leave array_size out."]})
            return
        if not attrs["command"]:
            raise serializers.ValidationError({"command": ["Give the program and its arguments."]})
        if attrs.setdefault("idle_minutes", None) is not None:
            raise serializers.ValidationError({"idle_minutes": ["This is for notebooks: give kind, too."]})


class OutputSerializer(Strict):
    """A part of the output of a run: standard output and standard error as they came."""

    run = shown.integer("Which run of the job, from 1.")
    offset = shown.integer("Where this part begins, in bytes.")
    next_offset = shown.integer("Where the next part begins: the `offset` of the next request.")
    text = shown.text("Bytes that are no UTF-8 are replaced.")
    complete = shown.flag("True: the run has ended, and this is the end of its output.")
    dropped_bytes = shown.integer("Output of the run that was not kept.")


class JobArraySerializer(Strict):
    """An array: jobs of one command, which differ by their index."""

    uid = shown.uid()
    tenant = shown.text(source="tenant.slug")
    pool = shown.text(source="pool.name")
    columns = Columns(JobArray, "name size at_once")
    state = serializers.SerializerMethodField(
        help_text="`running` while a job is open; then `succeeded`, if all have, else `failed` or `stopped`."
    )
    jobs = serializers.SerializerMethodField(help_text="How many of its jobs are in each state.")
    columns_2 = Columns(JobArray, "created_by created_at updated_at version")

    @extend_schema_field({"type": "string", "enum": ["running", *ENDED]})
    def get_state(self, array: Any) -> str:
        """Return the state of all together."""
        return state_of(count_states(array))

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "integer"}})
    def get_jobs(self, array: Any) -> dict[str, int]:
        """Return the number of jobs in each state that some have."""
        return count_states(array)


class JobFilesSerializer(Strict):
    """An archive of files that jobs of the tenant unpack."""

    uid = shown.uid()
    tenant = TenantBySlug()
    sha256 = serializers.RegexField(r"^[0-9a-f]{64}\Z", help_text="The digest of the archive, in hex.")
    size = StrictInteger(min_value=1, max_value=2**40, help_text="Its length in bytes.")
    columns = Columns(JobFiles, "stored_bytes complete reason created_by created_at updated_at version")
