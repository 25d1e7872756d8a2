"""The list of agents, and the command that enrols a node."""

from typing import Any

from django.core.validators import RegexValidator
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.shell.export import facts_of
from apps.console.shell.fields import one_of
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import ServiceForm, name_field
from apps.console.shell.lists.columns import column, number
from apps.console.shell.lists.filters import ListFilter, Search, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.console.shell.shown_once import redirect_to_secret, take_secret
from apps.nodes.api.views import enrolment_command
from apps.nodes.models import Node
from apps.nodes.services import bundle, nodes
from apps.quotas.models import Pool
from apps.quotas.models.pool import DEFAULT
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from gpucloud.web.keyset import Key
from gpucloud.web.natural_order import natural_key


class NodeForm(ServiceForm):
    """A new node."""

    name = name_field("gpu1", _("The node’s name here: a–z, 0–9 and hyphens."), validators=[RegexValidator(SLUG)])
    pool = one_of(_("Pool"), Pool.objects.order_by("name"), "name", initial=DEFAULT)


class AgentFilter(ListFilter):
    """The filters of agents."""

    q = Search("name", "hostname", "agent_version", "driver_version", placeholder=_("node, host or version"))
    pool = pools()


class AgentList(ListPage):
    """All agents, those unheard of for longest first."""

    model, filters, template_name = Node, AgentFilter, "access/list.html"
    title, subtitle = _("Agents"), _("The agents of the nodes, and their enrolment")
    operators_only = True
    first = (Key("last_seen_at"), Key(F("natural_name")))
    columns = [
        column(_("Node"), "name", Key(F("natural_name"), nullable=False)),
        column(_("State")),
        column(_("Agent"), "agent", natural_key("agent_version"), F("natural_name")),
        column(_("Driver"), "driver", natural_key("driver_version"), F("natural_name"), css="wide"),
        number(_("Last heartbeat"), "seen", "last_seen_at"),
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


class NewNode(FormPage):
    """A new node; the next page shows the command for its machine, once."""

    title, subtitle = _("New node"), _("A machine with GPUs; you get one command to run on it")
    form_class, submit, operators_only = NodeForm, _("Create node"), True
    parent = ("nodes", _("Nodes"))

    def act(self, form: NodeForm) -> tuple[Node, str]:
        """Create the node."""
        return nodes.create_node(principal=self.principal, **form.cleaned_data)

    def finish(self, form: NodeForm, done: tuple[Node, str]) -> HttpResponse:
        """Lead to the command."""
        return _command(self.request, *done)


@require_POST
@page
def renew(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show a new command for a machine; the agent that uses it replaces the present one."""
    principal.require_operator()
    node, token = nodes.renew_enrolment(principal=principal, node=get_object_or_404(Node, name=name))
    return _command(request, node, token)


def _command(request: HttpRequest, node: Node, token: str) -> HttpResponse:
    return redirect_to_secret(request, enrolment_command(request, token), "enrolment-command", node.name)


@require_GET
@page
def show_command(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show the command that enrols a machine, once."""
    principal.require_operator()
    node = get_object_or_404(Node, name=name)
    if (shown := take_secret(request)) is None:
        return redirect("node", name=name)
    context = {"node": node, "command": shown["text"], "until": node.enrolment_expires_at}
    return render(request, "access/command.html", context)
