"""Actions of a node's page: lift its fence, forget it, declare a GPU cured. Operators only."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from apps.console.shell.forms import describe_error
from apps.console.shell.page_access import page
from apps.nodes.models import Gpu, Node
from apps.quotas.principals import Principal
from apps.scheduling.services.claims.health import clear_gpu, lift_fence
from apps.scheduling.services.reclaiming.forgetting import forget_node
from gpucloud.errors import Conflict


@require_POST
@page
def unfence(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Lift the node's fence."""
    principal.require_operator()
    node = lift_fence(principal=principal, node=get_object_or_404(Node, name=name))
    messages.success(request, _("Node {0} takes new claims again.").format(node.name))
    return redirect("node", name=node.name)


@require_POST
@page
def clear(request: HttpRequest, principal: Principal, uuid: str) -> HttpResponse:
    """Declare the GPU cured."""
    principal.require_operator()
    gpu = clear_gpu(principal=principal, gpu=get_object_or_404(Gpu, uuid=uuid))
    messages.success(request, _("GPU {0} is declared cured; its agent will confirm it.").format(gpu.index))
    return redirect("node", name=gpu.node.name)


@require_POST
@page
def forget(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Release all that a lost node holds; refuse with a message if it came back meanwhile."""
    principal.require_operator()
    node = get_object_or_404(Node, name=name)
    try:
        forget_node(principal=principal, node=node)
    except Conflict as error:
        messages.error(request, describe_error(error))
    else:
        said = _("Node {0} is forgotten: its claims are released, and its agent must be enrolled again.")
        messages.success(request, said.format(name))
    return redirect("node", name=name)
