"""The price book: the price of an hour of a whole GPU. Everybody reads it, operators write it."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.console.shell.export import as_file, file_format
from apps.console.shell.fields import choice, one_of
from apps.console.shell.form_page import OperatorFormPage
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.nodes.models import Gpu
from apps.quotas.models import Pool, Price
from apps.quotas.models.price import PRICE_PLACES
from apps.quotas.principals import Principal
from apps.quotas.services import prices

COLUMNS = ["gpu_model", "pool", "valid_from", "per_gpu_hour", "currency"]


class PriceForm(ServiceForm):
    """A price from a day on."""

    gpu_model = choice(_("Model"), [])
    pool = one_of(
        _("Pool"), Pool.objects.order_by("name"), "name", _("A pool’s own price goes first."),
        required=False, empty_label=_("All pools"),
    )  # fmt: skip
    valid_from = forms.DateField(
        label=_("From"),
        help_text=_("A day, UTC."),
        widget=forms.DateInput(attrs={"class": "form-control", "type": "date"}, format="%Y-%m-%d"),
    )
    per_gpu_hour = forms.DecimalField(
        label=_("Price per GPU-hour"),
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


class PriceList(OperatorFormPage):
    """Every price, the newest of each model first, and the form of a new one for operators."""

    template_name, title = "reports/prices.html", _("Prices")
    subtitle = _("Price of an hour of a whole GPU, valid from a day until the next row of the same model and pool")
    submit, parent = _("Create price"), ("reports", _("GPU-hours"))

    @property
    def prices(self) -> QuerySet[Price]:
        """The price book."""
        return Price.objects.select_related("pool").order_by("gpu_model", "pool__name", "-valid_from")

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the page, or the prices as a file."""
        if file := file_format(request):
            return as_file(file, "prices", COLUMNS, map(_facts, self.prices.iterator()))
        return super().get(request, *args, **kwargs)

    def form(self, data: Any = None) -> PriceForm:
        """Return the form of a new price, with the model of the URL."""
        model = self.request.GET.get("model")
        return PriceForm(data, initial={"valid_from": timezone.now().date(), "gpu_model": model})

    def act(self, form: PriceForm) -> Price:
        """Set the price."""
        return prices.set_price(principal=self.principal, **form.cleaned_data)

    def finish(self, form: PriceForm, done: Price) -> HttpResponse:
        """Return to the prices."""
        self.say(gettext("{0} costs {1} from {2} on.").format(done.gpu_model, done.per_gpu_hour, done.valid_from))
        return redirect("prices")

    def more_context(self) -> dict[str, Any]:
        """Return the prices and their currency."""
        return {"prices": self.prices, "currency": settings.CURRENCY}


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
