"""Pages of access: tokens of programs, agents in force, and the command that enrols a node."""

from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.core.validators import RegexValidator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.console.access import tokens
from apps.console.shell.export import as_file, file_format
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page, wants_fragment
from apps.nodes.api.views import enrolment_command
from apps.nodes.models import Node
from apps.nodes.services import bundle, nodes
from apps.quotas.models import Pool, Token
from apps.quotas.models.pool import DEFAULT
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError

PER_PAGE = 50
AGENTS = [
    "node", "pool", "state", "agent_version", "driver_version", "hostname", "last_seen_at", "enrolled_at",
    "enrolment_expires_at",
]  # fmt: skip


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


@require_GET
@page
def access(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show all tokens that are not revoked or expired, and all agents. Operators only."""
    principal.require_operator()
    rows = Token.objects.visible_to(principal).alive().with_makers().order_by("tenant__slug", "name", "pk")
    agents = Node.objects.select_related("pool")
    if file := file_format(request):
        if request.GET.get("table") == "agents":
            return as_file(file, "agents", AGENTS, map(_facts, agents.iterator()))
        return as_file(file, "tokens", tokens.COLUMNS, map(tokens.facts, rows.iterator()))
    context = {
        "part": Paginator(rows, PER_PAGE).get_page(request.GET.get("page")),
        "agents": Paginator(agents, PER_PAGE).get_page(request.GET.get("agents")),
        "version": _version(),
        "now": timezone.now(),
    }
    return render(request, "access/_rows.html" if wants_fragment(request) else "access/access.html", context)


def _version() -> str | None:
    """Return the version of the agent that this server distributes; None without a bundle."""
    made = bundle.bundle()
    return made and made.version


def _facts(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name, None) for name in AGENTS} | {"node": node.name, "pool": node.pool.name}


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
