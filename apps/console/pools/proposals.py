"""Proposals of the rebalancer: the change and its reason, to accept or dismiss; and past ones."""

import uuid
from collections.abc import Callable
from typing import Any, Final

from django.contrib import messages
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.console.shell.export import facts_of
from apps.console.shell.forms import describe_error, posted_versions
from apps.console.shell.lists.columns import column, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Search, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.quotas.principals import Principal
from apps.scheduling.models import Proposal, ProposalState
from apps.scheduling.services.rebalancing import proposals
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.badges import badge
from gpucloud.web.natural_order import natural_key

KINDS: Final = {
    "lend": _("lend"),
    "give-back": _("give back"),
    "limit": _("limit"),
    "resize": _("resize"),
    "pack": _("pack"),
    "unpack": _("unpack"),
    "requeue": _("place again"),
}
CHANGES: Final = {
    "core_request": _("core request"),
    "core_limit": _("core limit"),
    "memory_mib": _("memory"),
    "lent_core": _("lent core"),
    "gpus": _("GPU"),
    "mig_start": _("first memory slice"),
}


class ProposalFilter(ListFilter):
    """The filters of proposals."""

    q = Search("claim__name", "claim__tenant__slug", placeholder=_("claim or tenant"))
    pool = pools()
    state = Choice(
        _("State"),
        {one.value: (badge(one).label, Q(state=one)) for one in ProposalState} | {"all": (_("All"), Q())},
        empty=_("Pending approval"),
        otherwise=Q(state=ProposalState.PROPOSED),
    )
    mine = Flag(_("Mine"), lambda principal: Q(claim__user=principal.user_id))


class ProposalList(ListPage):
    """The visible proposals, newest first; the open ones unless the URL asks for others."""

    model, filters, template_name = Proposal, ProposalFilter, "proposals/list.html"
    title = _("Proposals")
    subtitle = _("Rebalancing recommendations and history")
    columns = [
        column(_("Change"), "claim", natural_key("claim__name"), word="proposal"),
        column(_("Why")),
        column(_("Measured"), css="wide"),
        number(_("Found"), "created", "pk", css="wide num"),
        column(_("Answer")),
    ]
    file = ("proposals", [
        "uid", "pool", "tenant", "claim", "claim_uid", "kind", "policy", "before", "after", "explanation", "numbers",
        "state", "words", "decided_by", "decided_at", "created_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add pool and claim."""
        return rows.select_related("pool", "claim__tenant")

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the words, and whether the reader may answer."""
        mine = self.principal.with_role("member")
        for row in rows:
            with_words(row).may_answer = self.principal.is_operator or row.claim.tenant_id in mine
        return rows

    def facts(self, row: Any) -> Any:
        """Return the proposal with the names of its claim and pool."""
        of = row.claim
        return facts_of(row, self.file[1], pool=row.pool.name, tenant=of.tenant.slug, claim=of.name, claim_uid=of.uid)


def with_words(row: Any) -> Any:
    """Return the proposal with its numbers in words."""
    row.says = KINDS.get(row.kind, row.kind)
    row.differences = [
        (CHANGES.get(name, name), _in_words(row.before.get(name)), _in_words(value))
        for name, value in row.after.items()
    ]
    row.measured = [(name.replace("_", " "), value) for name, value in row.numbers.items()]
    return row


def _in_words(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, list) else value


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
