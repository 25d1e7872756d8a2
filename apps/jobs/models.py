"""Jobs, and the output of their runs."""

import uuid

from django.db import models
from django.db.models import Q

from agent import wire
from apps.quotas.models import Pool, Tenant, User
from apps.quotas.models.row import Owned, Row, checks
from apps.scheduling.models import Claim

# A command is read by people and sent in a frame with others (`agent.wire_jobs`).
MOST_ARGUMENTS, MOST_LETTERS_OF_ARGUMENT, MOST_BYTES_OF_COMMAND = 256, 32_768, 120_000
MOST_VARIABLES = 64
MOST_RETRIES = 10
MOST_OUTPUT_BYTES = 16 << 20
MOST_GIT_URL, MOST_GIT_REF = 1000, 200
MOST_OF_ARRAY = 1000
MOST_IDLE_MINUTES, IDLE_MINUTES = 10_080, 60
# The name of an image, and its digest.
MOST_DIGEST = wire.MAX_IMAGE + 80
# What one job waits for: each is looked at again for every job of an array.
MOST_DEPENDENCIES = 16


class JobKind(models.TextChoices):
    """Kinds: a notebook is a job whose program is Jupyter."""

    JOB = "job"
    NOTEBOOK = "notebook"


class JobState(models.TextChoices):
    """States: waiting → queued → running → succeeded, failed or stopped.

    `waiting`: without a claim yet. A retry, or a preempted claim, leads back to queued.
    """

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


# With a claim, and in all.
UNDER_CLAIM = (JobState.QUEUED, JobState.RUNNING)
OPEN = (JobState.WAITING, *UNDER_CLAIM)


class JobQuerySet(Owned["Job"]):
    """Jobs, selected by the principal who asks."""

    def open(self) -> "JobQuerySet":
        """Return the jobs that have not ended."""
        return self.filter(state__in=OPEN)


class JobFiles(Row):
    """An archive that jobs unpack, stored once in a tenant, by its digest."""

    audited = ("job-files", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="job_files")
    sha256 = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField()
    stored_bytes = models.PositiveBigIntegerField(default=0)
    # True once everything is here, and has this digest.
    complete = models.BooleanField(default=False)
    # Why its last upload was refused, after which nothing of it is stored.
    reason = models.CharField(max_length=300, null=True)
    created_by = models.CharField(max_length=200)

    objects: "models.Manager[JobFiles]" = Owned.as_manager()

    class Meta:
        ordering = ["-pk"]
        verbose_name_plural = "job files"
        constraints = [
            *checks(job_files_in_bounds=Q(stored_bytes__lte=models.F("size"))),
            models.UniqueConstraint(fields=["tenant", "sha256"], name="job_files_once"),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.sha256[:12]}"


class JobFilesPiece(models.Model):
    """A piece of an archive, from `offset` on."""

    files = models.ForeignKey(JobFiles, on_delete=models.CASCADE, related_name="pieces")
    offset = models.PositiveBigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ["files", "offset"]
        constraints = [models.UniqueConstraint(fields=["files", "offset"], name="job_files_piece_once")]

    def __str__(self) -> str:
        return f"{self.files_id}@{self.offset}"


class JobArray(Row):
    """Jobs of one command, which differ by their index. The lock of its row decides how many of them have claims."""

    audited = ("job-array", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="job_arrays")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="job_arrays")
    name = models.CharField(max_length=200)
    size = models.PositiveSmallIntegerField()
    at_once = models.PositiveSmallIntegerField(null=True, help_text="How many have claims at a time. Null: all.")
    created_by = models.CharField(max_length=200)

    objects: "models.Manager[JobArray]" = Owned.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = checks(
            job_array_has_jobs=Q(size__gte=1, size__lte=MOST_OF_ARRAY),
            job_array_goes_on=Q(at_once=None) | Q(at_once__gte=1),
        )
        indexes = [models.Index(fields=["tenant", "-id"], name="job_array_of_tenant")]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class Job(Row):
    """A command under a claim of its own, which a waiting job does not have yet.

    `run_*` is its present or last run, which has a uid of its own.
    """

    audited = ("job", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="jobs_of_pool")
    claim = models.OneToOneField(Claim, null=True, on_delete=models.PROTECT, related_name="job")
    # The fields of the claim that it is to have (`ClaimSpec`), while it has none.
    claim_spec = models.JSONField(default=dict, db_default={})
    array = models.ForeignKey(JobArray, null=True, on_delete=models.PROTECT, related_name="jobs")
    array_index = models.PositiveSmallIntegerField(null=True)
    name = models.CharField(max_length=200)
    kind = models.CharField(max_length=10, choices=JobKind, default=JobKind.JOB, db_default=JobKind.JOB)
    command = models.JSONField()
    # May hold secrets: the API shows the names only.
    environment = models.JSONField(default=dict)
    # The container image in which it runs, and what that was in its present or last run.
    image = models.CharField(max_length=wire.MAX_IMAGE, null=True)
    image_digest = models.CharField(max_length=MOST_DIGEST, null=True)
    # What is in its working directory when it begins: an archive, or a clone.
    files = models.ForeignKey(JobFiles, null=True, on_delete=models.SET_NULL, related_name="jobs")
    git_url = models.CharField(max_length=MOST_GIT_URL, null=True)
    git_ref = models.CharField(max_length=MOST_GIT_REF, null=True)
    time_limit_seconds = models.PositiveIntegerField(null=True, help_text="Of each run. Null: none.")
    retries = models.PositiveSmallIntegerField(default=0)
    state = models.CharField(max_length=10, choices=JobState, default=JobState.QUEUED)
    exit_code = models.PositiveSmallIntegerField(null=True)
    reason = models.CharField(max_length=2000, null=True)
    stop_requested_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True, help_text="When its first run began.")
    ended_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=200)
    user = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="jobs")
    run_uid = models.UUIDField(default=uuid.uuid4, unique=True)
    # Runs that failed by themselves, with the present one; those that were preempted do not count.
    attempt = models.PositiveSmallIntegerField(default=1)
    runs = models.PositiveIntegerField(default=1)
    run_started_at = models.DateTimeField(null=True)
    run_node = models.CharField(max_length=63, null=True)
    # Of a notebook: it ends when it was not used for so long (null: it does not), and when it was last used.
    idle_minutes = models.PositiveSmallIntegerField(null=True)
    idle_since = models.DateTimeField(null=True)
    # The result of a run whose output is still on its way.
    run_result = models.JSONField(null=True)
    # Bytes of the run's output that the server has, and that the node did not keep.
    output_bytes = models.PositiveBigIntegerField(default=0)
    dropped_bytes = models.PositiveBigIntegerField(default=0)
    # Output of all its runs that is still stored.
    stored_bytes = models.PositiveBigIntegerField(default=0, db_default=0)

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = checks(
            job_state_known=Q(state__in=JobState.values),
            job_ends_in_the_end=Q(state__in=OPEN, ended_at=None) | (~Q(state__in=OPEN) & Q(ended_at__isnull=False)),
            job_succeeds_by_zero=~Q(state="succeeded") | Q(exit_code=0),
            job_runs_under_a_claim=~Q(state__in=UNDER_CLAIM) | Q(claim__isnull=False),
            job_waits_without_claim=~Q(state="waiting") | Q(claim=None),
            job_files_or_git=Q(files=None) | Q(git_url=None),
            job_git_has_url=Q(git_ref=None) | Q(git_url__isnull=False),
            job_kind_known=Q(kind__in=JobKind.values),
            job_idle_of_notebooks=Q(idle_minutes=None) | Q(kind="notebook", idle_minutes__gte=1),
            job_index_in_array=Q(array=None, array_index=None) | Q(array__isnull=False, array_index__isnull=False),
        )
        indexes = [
            models.Index(fields=["tenant", "-id"], name="job_of_tenant"),
            models.Index(fields=["updated_at"], name="job_by_change"),
            models.Index(fields=["claim"], name="job_open", condition=Q(state__in=OPEN)),
            models.Index(fields=["id"], name="job_waiting", condition=Q(state="waiting")),
            models.Index(fields=["array", "array_index"], name="job_of_array", condition=Q(array__isnull=False)),
            models.Index(fields=["tenant", "ended_at"], name="job_with_output", condition=Q(stored_bytes__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def is_open(self) -> bool:
        """True until it has ended."""
        return self.state in OPEN

    @property
    def share(self) -> Claim:
        """Its claim; while it has none, the claim that it is to have, unsaved."""
        return self.claim or Claim(tenant=self.tenant, pool=self.pool, **self.claim_spec)


class JobDependency(models.Model):
    """A job that waits for the end of another one, or of a whole array.

    Dependencies are made with their job and never changed, so they point to older rows only: there are no cycles.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(Job, null=True, on_delete=models.CASCADE, related_name="dependents")
    on_array = models.ForeignKey(JobArray, null=True, on_delete=models.CASCADE, related_name="dependents")
    # True: however it ends; false: only if it succeeds.
    any_end = models.BooleanField()

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            job_dependency_names_one=Q(on=None, on_array__isnull=False) | Q(on__isnull=False, on_array=None),
            job_dependency_on_older=Q(on=None) | Q(on__lt=models.F("job")),
        )

    def __str__(self) -> str:
        return f"{self.job_id} after {self.on_id or self.on_array_id}"


class JobOutput(models.Model):
    """A piece of the output of one run, from `offset` on."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="output")
    run = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    data = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["run", "offset"]
        constraints = [models.UniqueConstraint(fields=["job", "run", "offset"], name="job_output_once")]

    def __str__(self) -> str:
        return f"{self.job_id}/{self.run}@{self.offset}"
