"""Jobs, and the output of their runs."""

import uuid

from django.db import models
from django.db.models import Q

from apps.quotas.models import Tenant, User
from apps.quotas.models.row import Owned, Row, checks
from apps.scheduling.models import Claim

# A command is read by people and sent in a frame with others (`agent.wire_jobs`).
MOST_ARGUMENTS, MOST_LETTERS_OF_ARGUMENT, MOST_BYTES_OF_COMMAND = 256, 32_768, 120_000
MOST_VARIABLES = 64
MOST_RETRIES = 10
MOST_OUTPUT_BYTES = 16 << 20


class JobState(models.TextChoices):
    """States: queued → running → succeeded, failed or stopped; a retry, or a preempted claim, leads back to queued."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


OPEN = (JobState.QUEUED, JobState.RUNNING)


class JobQuerySet(Owned["Job"]):
    """Jobs, selected by the principal who asks."""

    def open(self) -> "JobQuerySet":
        """Return the jobs that have not ended."""
        return self.filter(state__in=OPEN)


class Job(Row):
    """A command under a claim of its own. `run_*` is its present or last run, which has a uid of its own."""

    audited = ("job", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    claim = models.OneToOneField(Claim, on_delete=models.PROTECT, related_name="job")
    name = models.CharField(max_length=200)
    command = models.JSONField()
    # May hold secrets: the API shows the names only.
    environment = models.JSONField(default=dict)
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
        )
        indexes = [
            models.Index(fields=["tenant", "-id"], name="job_of_tenant"),
            models.Index(fields=["updated_at"], name="job_by_change"),
            models.Index(fields=["claim"], name="job_open", condition=Q(state__in=OPEN)),
            models.Index(fields=["tenant", "ended_at"], name="job_with_output", condition=Q(stored_bytes__gt=0)),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def is_open(self) -> bool:
        """True until it has ended."""
        return self.state in OPEN


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
