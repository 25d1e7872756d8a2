"""The price book: the price of an hour of a whole GPU. Everybody reads it, operators write it."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.console.shell.export import as_file, file_format
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.nodes.models import Gpu
from apps.quotas.models import Pool, Price
from apps.quotas.models.price import PRICE_PLACES
from apps.quotas.principals import Principal
from apps.quotas.services import prices
from gpucloud.errors import GpucloudError

COLUMNS = ["gpu_model", "pool", "valid_from", "per_gpu_hour", "currency"]


class PriceForm(ServiceForm):
    """A price from a day on."""

    gpu_model = forms.ChoiceField(label=_("Model"), widget=forms.Select(attrs={"class": "form-select"}))
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        required=False,
        empty_label=_("All pools"),
        help_text=_("A pool’s own price goes first."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    valid_from = forms.DateField(
        label=_("From"),
        help_text=_("A day, UTC."),
        widget=forms.DateInput(attrs={"class": "form-control", "type": "date"}, format="%Y-%m-%d"),
    )
    per_gpu_hour = forms.DecimalField(
        label=_("A GPU-hour"),
        min_value=0,
        max_digits=12,
        decimal_places=PRICE_PLACES,
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "decimal", "step": "any"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        models = Gpu.objects.order_by("model").values_list("model", flat=True).distinct()
        field = self.fields["gpu_model"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(model, model) for model in models]
        self.fields["per_gpu_hour"].help_text = gettext("In {0}; a share costs its part.").format(settings.CURRENCY)


@require_http_methods(["GET", "POST"])
@page
def price_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List every price, the newest of each model first; with a form for operators."""
    rows = Price.objects.select_related("pool").order_by("gpu_model", "pool__name", "-valid_from")
    if file := file_format(request):
        return as_file(file, "prices", COLUMNS, map(_facts, rows.iterator()))
    initial = {"valid_from": timezone.now().date(), "gpu_model": request.GET.get("model")}
    form = PriceForm(request.POST or None, initial=initial)
    if request.method == "POST":
        principal.require_operator()
        if form.is_valid():
            try:
                price = prices.set_price(principal=principal, **form.cleaned_data)
                said = gettext("{0} costs {1} from {2} on.").format(
                    price.gpu_model, price.per_gpu_hour, price.valid_from
                )
                messages.success(request, said)
                return redirect("prices")
            except GpucloudError as error:
                form.refuse(error)
    shown = {"prices": rows, "form": form, "currency": settings.CURRENCY}
    return render(request, "reports/prices.html", shown, status=422 if form.is_bound else 200)


@require_POST
@page
def remove(request: HttpRequest, principal: Principal, pk: int) -> HttpResponse:
    """Remove a price: the one before it applies again."""
    principal.require_operator()
    prices.remove_price(principal=principal, price=get_object_or_404(Price, pk=pk))
    messages.success(request, gettext("The price is removed; reports use the one before it."))
    return redirect("prices")


def _facts(price: Price) -> dict[str, Any]:
    shared = {name: getattr(price, name) for name in ("gpu_model", "valid_from", "per_gpu_hour")}
    return {**shared, "pool": price.pool and price.pool.name, "currency": settings.CURRENCY}
