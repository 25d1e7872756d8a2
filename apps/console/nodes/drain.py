"""A node's heartbeats of the last hour, and its drain after a preview. Operators only."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Max
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.shell.export import as_file, file_format
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.nodes.models import Node, UsageMinute
from apps.nodes.models.rolled import WHOLE_GPU
from apps.nodes.services.telemetry.levels import MINUTE, floor
from apps.quotas.principals import Principal
from apps.scheduling.services.reclaiming.draining import drain_node, plan
from gpucloud.errors import GpucloudError, PreconditionFailed

MINUTES = 60
# An agent reports once a second; with fewer frames than this in a minute it was away for some of it.
WHOLE_MINUTE = 50
HEIGHTS = {"whole": 10, "part": 6, "silent": 2}
COLUMNS = ["claim", "name", "tenant", "gpu_count", "core_request", "memory_mib", "to", "reasons"]


class DrainForm(ServiceForm):
    """The grace period of claims."""

    grace_seconds = forms.IntegerField(
        label=_("Grace period"),
        required=False,
        min_value=0,
        max_value=7 * 86_400,
        help_text=_("Seconds from the notice until a claim is requeued. Empty: the setting of the pool."),
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "numeric"}),
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)


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


@require_http_methods(["GET", "POST"])
@page
def drain(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Preview the drain; drain the node if posted."""
    principal.require_operator()
    node = get_object_or_404(Node.objects.select_related("pool"), name=name)
    form = DrainForm(request.POST or None, initial={"version": node.version})
    grace: int | None = None
    if request.method == "POST" and form.is_valid():
        grace = form.cleaned_data["grace_seconds"]
        if request.POST.get("act") == "drain" and _try_drain(request, principal, node, form):
            return redirect("node", name=name)
    found = plan(node, grace_seconds=grace)
    if file := file_format(request):
        return as_file(file, f"drain-{name}", COLUMNS, found["moves"])
    shown: dict[str, Any] = {"node": node, "form": form, "plan": found}
    shown["waiting"] = sum(move["to"] is None for move in found["moves"])
    return render(request, "nodes/drain.html", shown, status=422 if form.errors else 200)


def _try_drain(request: HttpRequest, principal: Principal, node: Node, form: DrainForm) -> HttpResponse | bool:
    version, grace = form.cleaned_data["version"], form.cleaned_data["grace_seconds"]
    versions = None if version is None else frozenset({version})
    try:
        drain_node(principal=principal, node=node, grace_seconds=grace, versions=versions)
    except PreconditionFailed as error:
        # The plan that is shown with this is of the node as it is now, and so is the form.
        node.refresh_from_db()
        form.refuse(error)
        form.data = request.POST.dict() | {"version": str(node.version)}
        return False
    except GpucloudError as error:
        form.refuse(error)
        return False
    text = gettext("Draining node {0}: its claims get notice within seconds.")
    messages.success(request, text.format(node.name))
    return True
