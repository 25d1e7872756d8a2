"""A node's heartbeats of the last hour, and its drain after a preview. Operators only."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.export import as_file, file_format
from apps.console.shell.fields import radios
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import VersionedForm, number
from apps.nodes.models import Node, UsageMinute
from apps.nodes.models.node import DrainMode
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import MINUTE, floor
from apps.scheduling.services.reclaiming.draining import drain_node, plan
from gpucloud.errors import GpucloudError

MINUTES = 60
# An agent reports once a second; with fewer frames than this in a minute it was away for some of it.
WHOLE_MINUTE = 50
HEIGHTS = {"whole": 10, "part": 6, "silent": 2}
# A week.
MOST_GRACE = 7 * 86_400
COLUMNS = ["claim", "name", "tenant", "gpu_count", "core_request", "memory_mib", "to", "carries", "restarts", "reasons"]


class DrainForm(VersionedForm):
    """The treatment of the claims, and their grace period."""

    mode = radios(_("Claims"), DrainMode.choices, initial=DrainMode.REQUEUE)
    grace_seconds = number(
        _("Grace period"),
        least=0,
        most=MOST_GRACE,
        required=False,
        help_text=_("Seconds from the notice until a claim leaves. Empty: the setting of the pool."),
    )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The rolled-up minutes of the last hour, oldest first: whole, part or silent."""

    minutes: list[str]

    @property
    def minutes_with_frames(self) -> int:
        """The number of minutes with any frame."""
        return len(self.minutes) - self.minutes.count("silent")

    @property
    def ticks(self) -> list[tuple[float, int, str]]:
        """Position, height out of ten, and state of each minute: the height shows what the colour does."""
        return [(at + 0.1, HEIGHTS[word], word) for at, word in enumerate(self.minutes)]


def heartbeat(node: Node, *, now: datetime) -> Heartbeat:
    """Return the heartbeat by the stored frames of each minute; for a new node since its enrolment."""
    # The minute before this one may not be rolled up yet.
    end = floor(now, MINUTE.span) - MINUTE.span
    begin = max(end - timedelta(minutes=MINUTES), floor(node.enrolled_at or node.created_at, MINUTE.span))
    moments = [begin + number * MINUTE.span for number in range(max(0, (end - begin) // MINUTE.span))]
    # By its moments, not by a range: the key begins with the time, and holds every node's rows of it.
    rows = UsageMinute.objects.filter(at__in=moments, node_id=node.pk, uid=WHOLE_GPU).order_by().values("at")
    frames = dict(rows.annotate(frames=Max("samples")).values_list("at", "frames"))
    return Heartbeat([_word(frames.get(moment, 0)) for moment in moments])


def _word(frames: int) -> str:
    return "whole" if frames >= WHOLE_MINUTE else "part" if frames else "silent"


class Drain(FormPage):
    """The drain of a node after its preview."""

    template_name, preview_template, operators_only = "nodes/drain.html", "nodes/_drain.html", True
    subtitle = _("Running claims get notice and leave after the grace period; no new claims are placed")
    submit = _("Drain node")

    def find(self) -> Node:
        """Return the node."""
        return get_object_or_404(Node.objects.select_related("pool"), name=self.kwargs["name"])

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the preview and the form, or the affected claims as a file."""
        if file := file_format(request):
            return as_file(file, f"drain-{self.row}", COLUMNS, plan(self.row)["moves"])
        return super().get(request, *args, **kwargs)

    def form(self, data: Any = None) -> DrainForm:
        """Return the form."""
        return DrainForm(data, initial={"version": self.row.version})

    def act(self, form: DrainForm) -> Node:
        """Drain the node."""
        given = {name: form.cleaned_data[name] for name in ("grace_seconds", "mode")}
        return drain_node(principal=self.principal, node=self.row, versions=form.versions, **given)

    def preview(self, form: DrainForm) -> dict[str, Any]:
        """Return nothing more: the effect is always shown."""
        return {}

    def show(self, form: DrainForm, /, **more: Any) -> HttpResponse:
        """Show the effect above the form."""
        given = getattr(form, "cleaned_data", {})
        mode = given.get("mode", DrainMode.REQUEUE)
        found = plan(self.row, grace_seconds=given.get("grace_seconds"), mode=mode)
        waiting = sum(move["to"] is None for move in found["moves"])
        restarts = sum(move["restarts"] for move in found["moves"])
        carries = sum(move["carries"] for move in found["moves"])
        found |= {"carries": carries, "restarts": restarts, "queued": len(found["moves"]) - restarts - carries}
        return super().show(form, **{"node": self.row, "preview": found, "waiting": waiting, **more})

    def finish(self, form: DrainForm, done: Node) -> HttpResponse:
        """Return to the node."""
        self.say(gettext("Draining node {0}: its claims get notice within seconds.").format(self.row))
        return super().finish(form, done)

    def resolve_conflict(self, form: DrainForm, error: GpucloudError) -> HttpResponse:
        """Refuse: the plan that was read is outdated; the one shown with this is current, and so is the form."""
        self.row = self.find()
        form.refuse(error)
        data: Any = form.data
        form.data = data.dict() | {"version": self.version()}
        return self.show(form)

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Drain {0}").format(self.row)

    @property
    def crumbs(self) -> list[Link]:
        """The node."""
        return [(reverse("node", args=[self.row.name]), self.row.name)]
