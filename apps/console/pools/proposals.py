"""Proposals of the rebalancer: the change and its reason, to accept or dismiss; and past ones."""

import uuid
from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.shell.export import Row, as_file, facts_of, file_format
from apps.console.shell.forms import describe_error, posted_versions
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.scheduling.models import Proposal, ProposalState
from apps.scheduling.services.rebalancing import proposals
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.badges import badge
from gpucloud.web.keyset import keyset_page

COLUMNS = [
    "uid", "pool", "tenant", "claim", "claim_uid", "kind", "policy", "before", "after", "explanation", "numbers",
    "state", "words", "decided_by", "decided_at", "created_at",
]  # fmt: skip
KINDS: Final = {"lend": _("lend"), "give-back": _("give back"), "limit": _("limit"), "resize": _("resize")}
CHANGES: Final = {
    "core_request": _("core request"),
    "core_limit": _("core limit"),
    "memory_mib": _("memory"),
    "lent_core": _("lent core"),
}
STATES: Final[list[tuple[str, Any]]] = [
    ("", _("Waiting for a decision")),
    *((one.value, badge(one).label) for one in ProposalState if one != "proposed"),
    ("all", _("All")),
]


class FilterForm(forms.Form):
    """The filter of the proposals, in the URL."""

    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        required=False,
        empty_label=_("All"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    state = forms.ChoiceField(
        label=_("State"), choices=STATES, required=False, widget=forms.Select(attrs={"class": "form-select"})
    )


@require_GET
@page
def proposal_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the visible proposals, newest first; the open ones unless the URL asks for others."""
    form = FilterForm(request.GET)
    form.is_valid()
    wanted = form.cleaned_data
    rows = Proposal.objects.visible_to(principal).select_related("pool", "claim__tenant").order_by("-pk")
    rows = rows.filter(pool=wanted["pool"]) if wanted.get("pool") else rows
    state = wanted.get("state") or ProposalState.PROPOSED
    rows = rows if state == "all" else rows.filter(state=state)
    if file := file_format(request):
        return as_file(file, "proposals", COLUMNS, map(_facts, rows.iterator()))
    part = keyset_page(rows, request.GET)
    mine = principal.with_role("member")
    shown = [(with_words(row), principal.is_operator or row.claim.tenant_id in mine) for row in part.rows]
    template = "proposals/_rows.html" if wants_fragment(request) else "proposals/list.html"
    return render(request, template, {"form": form, "proposals": shown, "part": part, "filtered": form.has_changed()})


def _facts(row: Proposal) -> Row:
    claim = row.claim
    return facts_of(row, COLUMNS, pool=row.pool.name, tenant=claim.tenant.slug, claim=claim.name, claim_uid=claim.uid)


def with_words(row: Any) -> Any:
    """Return the proposal with its numbers in words."""
    row.says = KINDS.get(row.kind, row.kind)
    row.differences = [(CHANGES.get(name, name), row.before.get(name), value) for name, value in row.after.items()]
    row.measured = [(name.replace("_", " "), value) for name, value in row.numbers.items()]
    return row


@require_POST
@page
def accept(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Carry out the proposal now."""
    return _answer(request, principal, uid, proposals.accept, gettext("The claim is changed as proposed."))


@require_POST
@page
def dismiss(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Leave the claim as it is."""
    done = gettext("The claim stays as it is, at least for a while.")
    return _answer(request, principal, uid, proposals.dismiss, done)


def _answer(
    request: HttpRequest, principal: Principal, uid: uuid.UUID, answer: Callable[..., Any], done: str
) -> HttpResponse:
    proposal = Proposal.objects.visible_to(principal).select_related("pool", "claim__tenant").filter(uid=uid).first()
    if proposal is None:
        raise Http404("There is no such proposal that you may see.")
    principal.require_role(proposal.claim.tenant, "member")
    try:
        answer(principal=principal, proposal=proposal, versions=posted_versions(request))
    except PreconditionFailed:
        late = gettext("Somebody answered it, or a later run changed it, while you had this page open.")
        messages.error(request, late)
    except GpucloudError as error:
        messages.error(request, describe_error(error))
    else:
        messages.success(request, done)
    return redirect("proposals")
