"""Views of /jobs/."""

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.jobs.api.serializers import JobSerializer, OutputSerializer
from apps.jobs.models import MOST_OF_ARRAY, OPEN, Job
from apps.jobs.services.creation import JobSpec, create_job
from apps.jobs.services.lifecycle import claim_of_job, stop_job
from apps.jobs.services.output import MOST_BYTES, read_output
from apps.jobs.services.source import Source
from apps.quotas.api.methods import lists, order, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.scheduling.api.claims import default_pool
from apps.scheduling.waiting import MAX_SECONDS
from gpucloud.api.filters import Changed, Named, filters_of
from gpucloud.api.serializers import Question, StrictInteger


class Open(Changed):
    """Jobs that have ended stay as history; `live=true` leaves them out."""

    live = filters.BooleanFilter(method="is_live", help_text="True: without those that have ended; false: only those.")

    def is_live(self, queryset: Any, name: str, value: bool) -> Any:
        """Return the jobs that have ended, or those that have not."""
        return queryset.filter(state__in=OPEN) if value else queryset.exclude(state__in=OPEN)


class JobView(ApiView):
    """The common part of job views. A principal that may create claims may run jobs."""

    serializer_class: Any = JobSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"
    queryset = Job.objects.select_related("tenant", "pool", "claim", "array", "files").prefetch_related(
        "dependencies__on", "dependencies__on_array"
    )
    answer_class, address = JobSerializer, "/jobs/{row.uid}/"


class JobList(JobView, ListMixin):
    """Jobs: commands that nodes start under claims."""

    filterset_class = filters_of(
        Job,
        "state",
        "kind",
        "name",
        base=Open,
        tenant=Named(Tenant.objects, "slug"),
        pool=Named(Pool.objects, "name"),
        array=filters.UUIDFilter(field_name="array__uid"),
        array_index=filters.NumberFilter(field_name="array_index", min_value=0, max_value=MOST_OF_ARRAY),
        node="run_node",
    )
    get = lists("List jobs, newest first; those that have ended stay as history.")

    @extend_schema(responses={201: JobSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Run a command under a new claim, which is charged at once and released with the job's end.

        A job that waits for others, and each of an array, gets its claim later. Of an array the first job is returned.
        """
        values = self.parse_body(request)
        share = values.pop("share")
        common = {name: values[name] for name in ("time_limit_seconds", "retries")}
        pool = values.pop("pool") or default_pool()
        claim = claim_of_job(
            tenant=values.pop("tenant"), pool=pool, name=values.pop("name"), image=values["image"], **share, **common
        )
        source = Source(**{name: values.pop(name) for name in ("files", "git_url", "git_ref")})
        job = create_job(principal=self.principal, spec=JobSpec(claim=claim, source=source, **values))
        return self.respond(self.get_queryset().get(pk=job.pk), status=201)


class JobDetail(JobView):
    """One job."""

    get = shows("Show a job.")


JobStop = order(
    JobView,
    stop_job,
    "job",
    "Stop the job: SIGTERM, and SIGKILL ten seconds later; at once if it waits. May be repeated.",
)


class OutputQuestion(Question):
    """The parameters of a read of output."""

    run = StrictInteger(min_value=1, max_value=2**31 - 1, required=False, help_text="Which run; the last unless given.")
    offset = StrictInteger(
        min_value=0, max_value=2**40, required=False, help_text="Where to begin, in bytes; 0 unless given."
    )
    most = StrictInteger(min_value=1, max_value=MOST_BYTES, required=False, help_text="The most bytes to return.")
    wait = StrictInteger(
        min_value=0,
        max_value=MAX_SECONDS,
        required=False,
        help_text="Wait until there is output after `offset`, or the run has ended, for so many seconds at most.",
    )


class JobOutputView(JobView):
    """The output of a job."""

    serializer_class: Any = OutputSerializer
    filter_backends: Any = []
    pagination_class = None

    @extend_schema(parameters=OutputQuestion.parameters())
    def get(self, request: Request, uid: str) -> Response:
        """Show output from an offset on; a follower asks again from `next_offset` until it is `complete`."""
        question = OutputQuestion.read(request)
        # By `apps.jobs.waiting`, around this view.
        question.pop("wait", None)
        part = read_output(self.find(uid), **question)
        return Response(self.get_serializer(part).data, headers={"Cache-Control": "no-store"})
