"""Orders to suspend, resume and move a claim, from its page and for selected claims of the list."""

import uuid
from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from apps.console.claims.claims import find
from apps.console.shell.forms import describe_error
from apps.console.shell.lists.bulk import NothingToDo
from apps.console.shell.page_access import page
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, ClaimState
from apps.suspension.between.ordering import move_claim_to_node
from apps.suspension.moving import move_claim
from apps.suspension.services import resume_claim, suspend_claim
from gpucloud.errors import Conflict

Order = Callable[..., Claim]


@require_POST
@page
def suspend(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Suspend the claim; an obstacle is shown on its page."""
    return _give(request, principal, uid, suspend_claim)


@require_POST
@page
def resume(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Resume the claim; an obstacle is shown on its page."""
    return _give(request, principal, uid, resume_claim)


@require_POST
@page
def move(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Move the claim to other GPUs of its node, or to the named node; an obstacle is shown on its page."""
    claim, node = find(principal, uid), request.POST.get("node")
    try:
        if node:
            claim = move_claim_to_node(
                principal=principal, claim=claim, node=node, restart=request.POST.get("how") == "restart"
            )
        else:
            claim = move_claim(principal=principal, claim=claim)
    except Conflict as error:
        messages.error(request, describe_error(error))
    else:
        done = _("{0} moves to node {1}.") if node else _("{0} is being moved to another GPU.")
        messages.success(request, done.format(claim, node))
    return redirect("claim", uid=uid)


def _give(request: HttpRequest, principal: Principal, uid: uuid.UUID, order: Order) -> HttpResponse:
    try:
        claim = order(principal=principal, claim=find(principal, uid))
    except Conflict as error:
        messages.error(request, describe_error(error))
    else:
        said = {
            ClaimState.SUSPENDING: _("{0} is being suspended: its share is free once its programs have left the GPU."),
            ClaimState.SUSPENDED: _("{0} stays suspended."),
            ClaimState.RESUMING: _("{0} waits in the queue for GPUs of its node."),
        }
        messages.success(request, said.get(ClaimState(claim.state), _("{0} is active.")).format(claim))
    return redirect("claim", uid=uid)


def suspend_row(principal: Principal, claim: Claim, versions: frozenset[int] | None) -> str:
    """Suspend a selected claim of the list; return what happens."""
    if claim.state in (ClaimState.SUSPENDING, ClaimState.SUSPENDED):
        raise NothingToDo(_("It is suspended already."))
    if suspend_claim(principal=principal, claim=claim, versions=versions).state == ClaimState.SUSPENDED:
        return _("Leaves the queue and stays suspended.")
    return _("Moves its GPU memory to its node’s memory, then frees its share and quota.")


def resume_row(principal: Principal, claim: Claim, versions: frozenset[int] | None) -> str:
    """Resume a selected claim of the list; return what happens."""
    if claim.state in (ClaimState.RESUMING, ClaimState.ACTIVE):
        raise NothingToDo(_("It is not suspended."))
    resume_claim(principal=principal, claim=claim, versions=versions)
    return _("Waits in the queue for GPUs of its node.")
