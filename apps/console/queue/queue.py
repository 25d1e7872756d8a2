"""The queue of a pool: its order, the reason of each wait, and the estimated start."""

from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.shell.export import Row, as_file, facts_of, file_format
from apps.console.shell.fragment_cache import share_fragment
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import Pool
from apps.quotas.models.pool import DEFAULT, FairShare
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles import queue
from apps.scheduling.services.cycles.fair_share import read_table

PER_PAGE = 50
COLUMNS = [
    "place", "uid", "name", "tenant", "priority", "group", "gpu_count", "core_request", "memory_mib", "gpu_model",
    "starts_at", "estimate", "reasons", "created_at",
]  # fmt: skip


class PoolForm(forms.Form):
    """The choice of a pool."""

    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        required=False,
        empty_label=None,
        widget=forms.Select(attrs={"class": "form-select"}),
    )


@require_GET
@page
@share_fragment
def queue_page(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the visible claims that wait in a pool, with their places among all.

    Without a pool in the URL, show the pool in which the reader's own claims wait.
    """
    form = PoolForm(request.GET if "pool" in request.GET else None)
    # An unknown pool selects the first one.
    pool = (form.cleaned_data["pool"] if form.is_valid() else None) or _first(principal)
    shown = {"form": PoolForm(initial={"pool": pool and pool.name}), "pool": pool}
    if pool is not None:
        seen = queue.get_snapshot(pool)
        uids = queue.list_visible(seen, principal)
        if file := file_format(request):
            return as_file(file, f"queue-{pool}", COLUMNS, map(_facts, queue.attach_places(seen, uids)))
        part = Paginator(uids, PER_PAGE).get_page(request.GET.get("page"))
        claims = queue.attach_places(seen, list(part.object_list))
        shown |= {"claims": claims, "part": part, "length": len(seen.waiting)}
        if pool.fair_share == FairShare.DECAYED:
            shown["shares"] = read_table(pool, principal)
    return render(request, "queue/_rows.html" if wants_fragment(request) else "queue/queue.html", shown)


def _facts(claim: Any) -> Row:
    waits = {"starts_at": claim.place.starts_at, "estimate": claim.place.estimate.detail}
    why = [reason["detail"] for reason in claim.reasons]
    return facts_of(claim, COLUMNS, tenant=claim.tenant.slug, place=claim.position, reasons=why, **waits)


def _first(principal: Principal) -> Pool | None:
    waits = Claim.objects.visible_to(principal).in_queue().select_related("pool").order_by("pk").first()
    if waits is not None:
        return waits.pool
    return Pool.objects.filter(name=DEFAULT).first() or Pool.objects.order_by("name").first()
