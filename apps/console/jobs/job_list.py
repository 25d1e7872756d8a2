"""The list of jobs."""

from typing import Any

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.console.shell.export import Row, facts_of
from apps.console.shell.lists.columns import SavedView, column, named, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Search, Text, made_by, pools, tenants
from apps.console.shell.lists.views import ListPage
from apps.jobs.models import OPEN, Job, JobKind, JobState
from gpucloud.web.badges import Badge, badge


def badge_of(state: str) -> Badge:
    """Return the badge of a job's state; clusters wait and webhooks are stopped in other words."""
    return badge(f"job-{state}" if state in (JobState.WAITING, JobState.STOPPED) else state)


class JobFilter(ListFilter):
    """The filters of jobs."""

    folded = ("kind", "tenant", "pool", "node", "owner", "mine")
    q = Search("name", "uid", placeholder=_("name or uid"))
    state = Choice(
        _("State"),
        {one.value: (badge_of(one).label, Q(state=one)) for one in JobState}
        | {"open": (_("Not ended"), Q(state__in=OPEN))},
        empty=_("All"),
    )
    kind = Choice(_("Kind"), {JobKind.NOTEBOOK.value: (_("Notebooks"), Q(kind=JobKind.NOTEBOOK))}, empty=_("All"))
    tenant = tenants()
    pool = pools("pool")
    node = Text(_("Node"), "run_node", _("all"))
    owner = Text(_("Owner"), "created_by__icontains", "user:anna")
    mine = Flag(_("Mine"), made_by)


class JobList(ListPage):
    """The visible jobs, newest first."""

    model, filters, template_name = Job, JobFilter, "jobs/list.html"
    title = _("Jobs")
    subtitle = _("Commands that nodes run under claims of their own")
    refresh_seconds = 10
    columns = [
        named(_("Job")),
        column(_("State"), "state", "state"),
        column(_("Command"), css="wide"),
        column(_("Node"), "node", "run_node", css="wide"),
        column(_("Owner"), "owner", "created_by", css="wide"),
        number(_("Exit code"), "exit", "exit_code", css="wide num"),
        column(_("Created"), "created", "pk"),
    ]
    views = [
        SavedView(_("All")),
        SavedView(_("Not ended"), "state=open"),
        SavedView(_("Notebooks"), "kind=notebook"),
        SavedView(_("Failed"), "state=failed"),
        SavedView(_("Mine"), "mine=1"),
    ]
    file = ("jobs", [
        "uid", "name", "kind", "tenant", "pool", "state", "exit_code", "reason", "run_node", "attempt", "runs",
        "created_by", "created_at", "started_at", "ended_at", "output_bytes", "dropped_bytes",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add tenant and pool."""
        return rows.select_related("tenant", "pool", "array")

    def facts(self, row: Any) -> Row:
        """Return the job with the names of tenant and pool."""
        return facts_of(row, self.file[1], tenant=row.tenant.slug, pool=row.pool.name)
