"""Pages of one node: its GPUs, cordon and uncordon. Operators only."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.nodes.drain import heartbeat
from apps.console.shell.bars import bars_of
from apps.console.shell.chart_span import span_of
from apps.console.shell.forms import describe_error
from apps.console.shell.measurements import chart_of_gpus, use_of_assignments, use_of_gpus
from apps.console.shell.page_access import page, wants_fragment
from apps.nodes.models import Node
from apps.nodes.services.conditions import of_node
from apps.nodes.services.nodes import change_node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.scheduling.models import Assignment, AssignmentState
from apps.scheduling.services.claims.drift import NothingToRepair, repair_node
from apps.scheduling.services.reclaiming.draining import attach_progress

REPORTS = 8


@require_GET
@page
def node_detail(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show one node, or its live fragment."""
    principal.require_operator()
    node = get_object_or_404(Node.objects.select_related("pool"), name=name)
    if wants_fragment(request):
        return render(request, "nodes/_live.html", _context(node))
    span = span_of(request)
    chart = chart_of_gpus(node.gpus.all(), span)
    return render(request, "nodes/node.html", {**_context(node), "span": span, "chart": chart})


@require_GET
@page
def node_series(request: HttpRequest, principal: Principal, name: str) -> JsonResponse:
    """Return the data of the node's charts."""
    principal.require_operator()
    node = get_object_or_404(Node, name=name)
    return JsonResponse(chart_of_gpus(node.gpus.all(), span_of(request)))


@require_POST
@page
def cordon(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Cordon the node, or uncordon it."""
    principal.require_operator()
    node = get_object_or_404(Node, name=name)
    cordoned = request.POST.get("cordoned") == "yes"
    change_node(principal=principal, node=node, cordoned=cordoned)
    text = _("Node {0} takes no new claims; those on it stay.") if cordoned else _("Node {0} takes new claims again.")
    messages.success(request, text.format(node.name))
    return redirect("node", name=node.name)


@require_POST
@page
def repair(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Order the repair of drift on the machine."""
    principal.require_operator()
    node = get_object_or_404(Node, name=name)
    try:
        repair_node(principal=principal, node=node)
    except NothingToRepair as error:
        messages.info(request, describe_error(error))
    else:
        messages.success(request, _("The agent of {0} repairs the changes.").format(node.name))
    return redirect("node", name=node.name)


def _context(node: Node) -> dict[str, Any]:
    attach_progress([node])
    gpus = list(node.gpus.select_related("health").prefetch_related("conditions"))
    live = list(
        Assignment.objects.filter(gpu__node=node).live().select_related("claim__tenant", "gpu__node").order_by("pk")
    )
    use, shares = use_of_gpus(gpus), use_of_assignments(live)
    return {
        "node": node,
        "conditions": of_node(node),
        "heartbeat": heartbeat(node, now=timezone.now()),
        "reports": AuditEvent.objects.filter(
            object_type="node", object_id=node.name, action__startswith="agent."
        ).order_by("-pk")[:REPORTS],
        "wrong": [check for check in node.checks if check["state"] != "ok"],
        "claims": len({item.claim_id for item in live}),
        # A suspended claim holds none of its GPUs.
        "holding": len({item.claim_id for item in live if item.state != AssignmentState.SUSPENDED}),
        "gpus": [bars_of(gpu, assignments=live, use=use, shares=shares) for gpu in gpus],
    }
