"""/prices/: the price book. Every signed-in user may read it, because usage reports depend on it."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from apps.quotas.api.methods import creates, lists, removes, shows
from apps.quotas.api.serializers import PoolByName
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.models import Price
from apps.quotas.models.price import PRICE_PLACES
from apps.quotas.services import prices
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns


class PriceSerializer(Strict):
    """Price of a GPU-hour of one model, from a day on."""

    id = shown.integer(source="pk")
    gpu_model = serializers.CharField(
        max_length=200, help_text="Model as the nodes' agents report it: see /api/v1/gpus/."
    )
    pool = PoolByName(allow_null=True, default=None, help_text="Null: every pool without a price of its own.")
    valid_from = serializers.DateField(help_text="First day of the price, from 00:00 UTC.")
    per_gpu_hour = serializers.DecimalField(
        max_digits=12, decimal_places=PRICE_PLACES, min_value=0, help_text='For a whole GPU, as text: "2.50".'
    )
    currency = serializers.SerializerMethodField(help_text="Currency of the installation.")
    changed = Columns(Price, "version created_at updated_at")

    def get_currency(self, price: Any) -> str:
        """Return the installation's currency."""
        return str(settings.CURRENCY)


class PriceView(ApiView):
    """Base of the price views."""

    serializer_class = PriceSerializer
    queryset = Price.objects.select_related("pool")
    read_scope, write_scope = "quotas:read", "quotas:write"
    operator_methods = CHANGES


class PriceList(PriceView, ListMixin):
    """Prices of a GPU-hour."""

    filterset_class = filters_of(Price, "gpu_model", pool="pool__name")
    get = lists("List prices, newest first.")
    post = creates(prices.set_price, "Set a model's price from a day on.")


class PriceDetail(PriceView):
    """One price."""

    get = shows("Show a price.")
    delete = removes(
        prices.remove_price, "price", "Remove a price: the previous one applies again, in reports of the past too."
    )
