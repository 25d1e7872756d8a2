"""The way from a notebook's page into the notebook."""

import uuid
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from apps.console.jobs.jobs import find
from apps.console.shell.page_access import page
from apps.jobs.models import JobKind, JobState
from apps.notebooks import hosts
from apps.notebooks.admission import ENTRANCE
from apps.notebooks.entries import make_ticket
from apps.quotas.models import User
from apps.quotas.principals import Principal


@require_GET
@page
def open_notebook(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Lead to the notebook, at its own address, with a ticket that counts once."""
    job = find(principal, uid)
    if job.kind != JobKind.NOTEBOOK:
        raise Http404
    principal.require_role(job.tenant, "member")
    obstacle = None
    if not hosts.is_on():
        obstacle = gettext("Notebooks have no address here: an operator sets NOTEBOOKS_URL for the server.")
    elif job.state != JobState.RUNNING:
        obstacle = gettext("The notebook does not run.")
    if obstacle is not None:
        messages.error(request, obstacle)
        return redirect("job", uid=uid)
    assert isinstance(request.user, User)
    assert request.session.session_key is not None
    ticket = make_ticket(request.user, request.session.session_key, uid)
    return redirect(f"{hosts.origin_of(uid)}{ENTRANCE}?{urlencode({'ticket': ticket})}")
