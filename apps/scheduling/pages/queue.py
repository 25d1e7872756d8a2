"""The queue of a pool: who is asked next, why each waits, and when it will start."""

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.quotas.models import Pool
from apps.quotas.models.pool import DEFAULT
from apps.quotas.principals import Principal
from apps.scheduling.pages.access import page, wants_fragment
from apps.scheduling.pages.shared import shared
from apps.scheduling.services.placing import queue

PER_PAGE = 50


class PoolForm(forms.Form):
    """Which pool's."""

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
@shared
def queue_page(request: HttpRequest, principal: Principal) -> HttpResponse:
    """What waits in a pool, as far as one may see it, with its place among all."""
    form = PoolForm(request.GET if "pool" in request.GET else None, initial={"pool": DEFAULT})
    # A pool that is none is the first one.
    pool = (form.cleaned_data["pool"] if form.is_valid() else None) or _first()
    shown = {"form": form, "pool": pool}
    if pool is not None:
        seen = queue.line(pool)
        part = Paginator(queue.in_line(seen, principal), PER_PAGE).get_page(request.GET.get("page"))
        claims = queue.placed_in(seen, list(part.object_list))
        shown |= {"claims": claims, "part": part, "length": len(seen.waiting)}
    return render(request, "queue/_rows.html" if wants_fragment(request) else "queue/queue.html", shown)


def _first() -> Pool | None:
    return Pool.objects.filter(name=DEFAULT).first() or Pool.objects.order_by("name").first()
