"""A claim's part of a shared GPU: its weight, its class, and whether rebalancing may change it."""

import uuid
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.claims.claims import BEST_EFFORT, GUARANTEED, find
from apps.console.shell.fields import api_help, choice, switch
from apps.console.shell.forms import ServiceForm, number
from apps.console.shell.page_access import page
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.scheduling.api.serializers import ResizeSerializer
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import MOST_WEIGHT, PLACED
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.claims.resize import UNCHARGED, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud.errors import GpucloudError

CLASSES = [(GUARANTEED, _("Guaranteed")), (BEST_EFFORT, _("Best effort"))]


class SharingForm(ServiceForm):
    """The fields of a claim for which nothing is charged.

    `version` holds these fields as the reader saw them: the claim's own version changes with every step of its life,
    too.
    """

    weight = number(_("Weight"), most=MOST_WEIGHT, help_text=api_help(ResizeSerializer, "weight"))
    best_effort = choice(_("Class"), CLASSES, api_help(ResizeSerializer, "class"))
    rebalance = switch(
        _("May be rebalanced"),
        _("Otherwise rebalancing and the pool’s idle rule only report it, and it gets lent core back at once."),
    )
    version = forms.CharField(required=False, widget=forms.HiddenInput)

    def changes(self, claim: Claim) -> dict[str, Any]:
        """Return the fields that differ from the claim, for the service."""
        values = {**self.cleaned_data, "best_effort": self.cleaned_data["best_effort"] == BEST_EFFORT}
        return {name: values[name] for name in UNCHARGED if values[name] != getattr(claim, name)}


def initial_of(claim: Claim) -> dict[str, Any]:
    """Return the claim's present values."""
    kind = BEST_EFFORT if claim.best_effort else GUARANTEED
    return {"weight": claim.weight, "best_effort": kind, "rebalance": claim.rebalance, "version": version_of(claim)}


def version_of(claim: Claim) -> str:
    """Return the values that this form shows, for comparison."""
    return "-".join(str(int(getattr(claim, name))) for name in UNCHARGED)


@require_http_methods(["GET", "POST"])
@page
def sharing(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show and apply the sharing form; a refusal is shown in it, and then nothing was changed."""
    claim = find(principal, uid)
    principal.require_role(claim.tenant, "member")
    if not claim.waiting and claim.state not in PLACED:
        messages.info(request, gettext("{0} has ended or is ending: it cannot be changed.").format(claim))
        return redirect("claim", uid=uid)
    form = SharingForm(request.POST or None, initial=initial_of(claim))
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _handle_post(request, principal, claim, form)
        if done:
            return redirect("claim", uid=uid)
    refused = form.is_bound and not form.is_valid()
    shown |= {"claim": find(principal, uid), "form": form}
    return render(request, "claims/sharing.html", shown, status=422 if refused else 200)


def _handle_post(
    request: HttpRequest, principal: Principal, claim: Claim, form: SharingForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    try:
        with transaction.atomic():
            claim = locked(claim)
            if form.cleaned_data["version"] != version_of(claim):
                return _resolve_conflict(claim, form), False
            changes = form.changes(claim)
            resize_claim(principal=principal, claim=claim, changes=ClaimChanges(**changes))
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    labels = ", ".join(str(form.fields[name].label).lower() for name in UNCHARGED if name in changes)
    said = gettext("{0} is changed: {1}.") if changes else gettext("Nothing has changed.")
    messages.success(request, said.format(claim, labels))
    return {}, True


def _resolve_conflict(claim: Claim, form: SharingForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new state."""
    form.data = {**dict(form.data.items()), "version": version_of(claim)}
    events = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid), action="claim.resize")
    rebalanced = gettext("may be rebalanced") if claim.rebalance else gettext("is not rebalanced")
    kind = gettext("Best effort") if claim.best_effort else gettext("Guaranteed")
    now = [gettext("weight {0}").format(claim.weight), kind.lower(), rebalanced]
    return {"conflict": events.order_by("-pk").first(), "said": ", ".join(now)}
