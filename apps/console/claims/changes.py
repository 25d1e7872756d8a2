"""Changes of a claim from its page: new limits while it runs, a renewed lease, its release."""

import uuid
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.console.claims.claim_forms import ResizeForm, SuggestionForm
from apps.console.claims.claims import claim_context, find, last_resizes, memory_in_use, resize_form
from apps.console.shell.forms import describe_error
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.leases import renew_claim
from apps.scheduling.services.claims.lifecycle import limits, locked, release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud.errors import Conflict, GpucloudError
from gpucloud.web.tags import mib, percent


@require_http_methods(["GET", "POST"])
@page
def resize(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show and apply the resize form; a refusal is shown in it, and then nothing was changed."""
    claim = find(principal, uid)
    if request.method == "GET":
        return _answer(request, principal, claim, resize_form(claim))
    form, noted = resize_form(claim, request.POST), dict[str, Any]()
    if form.is_valid():
        try:
            noted = resize_or_note(request, principal, claim, form)
        except GpucloudError as error:
            form.refuse(error)
        else:
            claim = find(principal, uid)
            form = form if noted else resize_form(claim)
    return _answer(request, principal, claim, form, **noted)


@transaction.atomic
def resize_or_note(request: HttpRequest, principal: Principal, claim: Claim, form: ResizeForm) -> dict[str, Any]:
    """Resize the claim, or return what its reader must know before: a foreign change, or memory below its use."""
    claim_now = locked(claim)
    if form.is_outdated(limits(claim_now)):
        form.rebase(limits(claim_now))
        return {"conflict": last_resizes([claim]).get(str(claim.uid)), "said": _describe(limits(claim_now))}
    memory = form.changes.get("memory_mib")
    # What a claim uses beyond its promise it borrows.
    in_use = memory_in_use(claim) if memory and claim.memory_limit_mib is None else 0
    if memory and memory < in_use and request.POST.get("below_use") != str(memory):
        return {"below_use": {"memory_mib": memory, "in_use": in_use, "over": in_use - memory}}
    resize_claim(principal=principal, claim=claim, changes=ClaimChanges(**form.changes))
    return {}


def _describe(present: dict[str, int]) -> str:
    words = _("request {0}, limit {1}, memory {2}")
    return words.format(percent(present["core_request"]), percent(present["core_limit"]), mib(present["memory_mib"]))


def _answer(request: HttpRequest, principal: Principal, claim: Claim, form: ResizeForm, **noted: Any) -> HttpResponse:
    refused = form.is_bound
    if not wants_fragment(request) and not refused:
        return redirect("claim", uid=claim.uid)
    shown = {**claim_context(claim, principal), "form": form, "answered": not refused, **noted}
    template = "claims/_resize.html" if wants_fragment(request) else "claims/resize.html"
    return render(request, template, shown, status=422 if form.errors else 200)


@require_POST
@page
def apply_suggestion(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Reduce a waiting claim to the suggested core request or memory; an obstacle is shown on the claim's page."""
    form = SuggestionForm(request.POST)
    if not form.is_valid() or not form.changes:
        messages.error(request, _("Give a core request or a memory."))
        return redirect("claim", uid=uid)
    try:
        claim = resize_claim(principal=principal, claim=find(principal, uid), changes=ClaimChanges(**form.changes))
    except GpucloudError as error:
        messages.error(request, describe_error(error))
    else:
        messages.success(request, _("{0} is reduced and tried again.").format(claim))
    return redirect("claim", uid=uid)


@require_POST
@page
def release(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Release the claim."""
    claim = release_claim(principal=principal, claim=find(principal, uid))
    if claim.state == "released":
        said = _("{0} is released; its quota is free again.")
    else:
        said = _("{0} is being released: its programs end, then its share is free.")
    messages.success(request, said.format(claim))
    return redirect("claim", uid=uid)


@require_POST
@page
def renew(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Restart the claim's lease now; an obstacle is shown on the claim's page."""
    try:
        claim = renew_claim(principal=principal, claim=find(principal, uid))
    except Conflict as error:
        messages.error(request, describe_error(error))
    else:
        end = timezone.localtime(claim.lease_until).strftime("%Y-%m-%d %H:%M:%S %Z")
        messages.success(request, _("The lease of {0} now runs until {1}.").format(claim, end))
    return redirect("claim", uid=uid)
