"""The list of agents, and the command that enrols a node."""

from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.console.shell.export import facts_of
from apps.console.shell.forms import ServiceForm
from apps.console.shell.lists.columns import column, named, number
from apps.console.shell.lists.filters import ListFilter, Search, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.nodes.api.views import enrolment_command
from apps.nodes.models import Node
from apps.nodes.services import bundle, nodes
from apps.quotas.models import Pool
from apps.quotas.models.pool import DEFAULT
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError
from gpucloud.web.keyset import Key
from gpucloud.web.natural_order import natural_key


class NodeForm(ServiceForm):
    """A new node."""

    name = forms.CharField(
        label=_("Name"),
        max_length=63,
        help_text=_("The node’s name here: a–z, 0–9 and hyphens."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "gpu1"}),
        validators=[RegexValidator(SLUG)],
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        initial=DEFAULT,
        empty_label=None,
        widget=forms.Select(attrs={"class": "form-select"}),
    )


class AgentFilter(ListFilter):
    """The filters of agents."""

    q = Search("name", "hostname", "agent_version", "driver_version", placeholder=_("node, host or version"))
    pool = pools()


class AgentList(ListPage):
    """All agents, those unheard of for longest first."""

    model, filters, template_name = Node, AgentFilter, "access/list.html"
    title, subtitle = _("Agents"), _("The agents of the nodes, and their enrolment")
    operators_only = True
    first = (Key("last_seen_at"), Key(natural_key("name")))
    columns = [
        named(_("Node")),
        column(_("State")),
        column(_("Agent"), "agent", natural_key("agent_version"), natural_key("name")),
        column(_("Driver"), "driver", natural_key("driver_version"), natural_key("name"), css="wide"),
        number(_("Last sign of life"), "seen", "last_seen_at"),
        number(_("Enrolled"), "enrolled", "enrolled_at", css="wide num"),
        column(_("Enrolment command"), css="wide num"),
    ]
    file = ("agents", [
        "node", "pool", "state", "agent_version", "driver_version", "hostname", "last_seen_at", "enrolled_at",
        "enrolment_expires_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add the pool."""
        return rows.select_related("pool")

    def facts(self, row: Any) -> Any:
        """Return the agent with the names of its node and pool."""
        return facts_of(row, self.file[1], node=row.name, pool=row.pool.name)

    def more_context(self) -> dict[str, Any]:
        """Return the version of the agent that this server distributes, and the time."""
        made = bundle.bundle()
        return {"version": made and made.version, "now": timezone.now()}


@require_http_methods(["GET", "POST"])
@page
def new_node(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Create a node; the answer shows the command for its machine, once."""
    principal.require_operator()
    form = NodeForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            node, token = nodes.create_node(principal=principal, **form.cleaned_data)
            return _command(request, node, token)
        except GpucloudError as error:
            form.refuse(error)
    return render(request, "access/new_node.html", {"form": form}, status=422 if form.is_bound else 200)


@require_POST
@page
def renew(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show a new command for a machine; the agent that uses it replaces the present one."""
    principal.require_operator()
    node, token = nodes.renew_enrolment(principal=principal, node=get_object_or_404(Node, name=name))
    return _command(request, node, token)


def _command(request: HttpRequest, node: Node, token: str) -> HttpResponse:
    context = {"node": node, "command": enrolment_command(request, token), "until": node.enrolment_expires_at}
    return render(request, "access/command.html", context, status=201)
