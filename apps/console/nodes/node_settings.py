"""A node's settings: its pool, and whether its agent repairs drift by itself."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.shell.fields import api_help, switch
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.nodes.api.serializers import NodeSerializer
from apps.nodes.models import Node
from apps.nodes.services.nodes import change_node
from apps.quotas.models import AuditEvent, Pool
from apps.quotas.principals import Principal
from apps.scheduling.models import Assignment
from gpucloud.errors import GpucloudError

SETTABLE = ("pool", "repair_drift")


class SettingsForm(ServiceForm):
    """The settings of a node.

    `version` holds these settings as the reader saw them: the node's own version changes with its agent's reports, too.
    """

    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        to_field_name="name",
        label=_("Pool"),
        empty_label=None,
        help_text=_("Only an empty node can move to another."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    repair_drift = switch(_("Repair drift"), api_help(NodeSerializer, "repair_drift"))
    version = forms.CharField(required=False, widget=forms.HiddenInput)

    def changes(self, node: Node) -> dict[str, Any]:
        """Return the settings that differ from the node, for the service."""
        return {name: self.cleaned_data[name] for name in SETTABLE if self.cleaned_data[name] != getattr(node, name)}


def version_of(node: Node) -> str:
    """Return the values that this form shows, for comparison."""
    return f"{node.pool.name} {node.repair_drift}"


@require_http_methods(["GET", "POST"])
@page
def settings(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show and apply the settings form; a refusal is shown in it, and then nothing was changed."""
    principal.require_operator()
    node = _find(name)
    initial = {"pool": node.pool.name, "repair_drift": node.repair_drift, "version": version_of(node)}
    form = SettingsForm(request.POST or None, initial=initial)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _handle_post(request, principal, name, form)
        if done:
            return redirect("node", name=name)
    refused = form.is_bound and not form.is_valid()
    live = Assignment.objects.filter(gpu__node=node).live()
    shown |= {"node": _find(name), "form": form, "claims": live.values("claim").distinct().count()}
    return render(request, "nodes/settings.html", shown, status=422 if refused else 200)


def _find(name: str, rows: QuerySet[Node] | None = None) -> Node:
    rows = Node.objects.all() if rows is None else rows
    return get_object_or_404(rows.select_related("pool"), name=name)


def _handle_post(
    request: HttpRequest, principal: Principal, name: str, form: SettingsForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    try:
        with transaction.atomic():
            node = _find(name, Node.objects.select_for_update(of=("self",)))
            if form.cleaned_data["version"] != version_of(node):
                return _resolve_conflict(node, form), False
            if changes := form.changes(node):
                change_node(principal=principal, node=node, **changes)
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    labels = ", ".join(str(form.fields[field].label).lower() for field in SETTABLE if field in changes)
    said = gettext("{0} is changed: {1}.") if changes else gettext("Nothing has changed.")
    messages.success(request, said.format(name, labels))
    return {}, True


def _resolve_conflict(node: Node, form: SettingsForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new state."""
    form.data = {**dict(form.data.items()), "version": version_of(node)}
    events = AuditEvent.objects.filter(object_type="node", object_id=node.name, action="node.change")
    events = events.filter(after__has_any_keys=SETTABLE)
    drift = gettext("drift is repaired at once") if node.repair_drift else gettext("drift waits for an operator")
    said = ", ".join([gettext("pool {0}").format(node.pool), drift])
    return {"conflict": events.order_by("-pk").first(), "said": said}
