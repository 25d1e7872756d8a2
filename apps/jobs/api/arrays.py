"""Views of /job-arrays/."""

from typing import Any

from django.db.models import Exists, OuterRef

from apps.jobs.api.jobs import Open
from apps.jobs.api.serializers import JobArraySerializer
from apps.jobs.models import OPEN, Job, JobArray
from apps.jobs.services.arrays import stop_array, with_counts
from apps.quotas.api.methods import lists, order, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Pool, Tenant
from gpucloud.api.filters import Named, filters_of


class OpenArray(Open):
    """Arrays that have ended stay as history."""

    def is_live(self, queryset: Any, name: str, value: bool) -> Any:
        """Return the arrays of which all jobs have ended, or those with an open one."""
        is_open = Exists(Job.objects.filter(array=OuterRef("pk"), state__in=OPEN))
        return queryset.filter(is_open) if value else queryset.exclude(is_open)


class ArrayView(ApiView):
    """The common part of array views."""

    serializer_class: Any = JobArraySerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"
    queryset = JobArray.objects.select_related("tenant", "pool")
    answer_class, address = JobArraySerializer, "/job-arrays/{row.uid}/"

    def get_queryset(self) -> Any:
        """Return the visible arrays with the numbers of their jobs."""
        return with_counts(super().get_queryset())


class ArrayList(ArrayView, ListMixin):
    """Arrays of jobs."""

    filterset_class = filters_of(
        JobArray, "name", base=OpenArray, tenant=Named(Tenant.objects, "slug"), pool=Named(Pool.objects, "name")
    )
    get = lists("List arrays of jobs, newest first. `POST /jobs/` with `array_size` makes one.")


class ArrayDetail(ArrayView):
    """One array."""

    get = shows("Show an array; `GET /jobs/?array=UID` lists its jobs.")


ArrayStop = order(ArrayView, stop_array, "array", "Stop all jobs of the array. May be repeated.")
