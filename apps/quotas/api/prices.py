"""/prices/: the price book. Every signed-in user may read it, because usage reports depend on it."""

from typing import Any

from django.conf import settings
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.serializers import PoolByName
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Price
from apps.quotas.models.price import PRICE_PLACES
from apps.quotas.services import prices
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict


class PriceSerializer(Strict):
    """Price of a GPU-hour of one model, from a day on."""

    id = serializers.IntegerField(source="pk", read_only=True)
    gpu_model = serializers.CharField(
        max_length=200, help_text="Model as the nodes' agents report it: see /api/v1/gpus/."
    )
    pool = PoolByName(allow_null=True, default=None, help_text="Null: every pool without a price of its own.")
    valid_from = serializers.DateField(help_text="First day of the price, from 00:00 UTC.")
    per_gpu_hour = serializers.DecimalField(
        max_digits=12, decimal_places=PRICE_PLACES, min_value=0, help_text='For a whole GPU, as text: "2.50".'
    )
    currency = serializers.SerializerMethodField(help_text="Currency of the installation.")
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def get_currency(self, price: Any) -> str:
        """Return the installation's currency."""
        return str(settings.CURRENCY)


class PriceFilter(Changed):
    """Prices by model and pool."""

    pool = filters.CharFilter(field_name="pool__name")

    class Meta:
        model = Price
        fields = ["gpu_model", "pool", "updated_since"]


class PriceView(ApiView):
    """Base of the price views."""

    serializer_class = PriceSerializer
    queryset = Price.objects.select_related("pool")
    read_scope, write_scope = "quotas:read", "quotas:write"
    operator_methods = CHANGES


class PriceList(PriceView, ListMixin):
    """Prices of a GPU-hour."""

    filterset_class = PriceFilter

    def get(self, request: Request) -> Response:
        """List prices, newest first."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request) -> Response:
        """Set a model's price from a day on."""
        return self.answer(prices.set_price(principal=self.principal, **self.parse_body(request)), status=201)


class PriceDetail(PriceView):
    """One price."""

    def get(self, request: Request, pk: int) -> Response:
        """Show a price."""
        return self.answer(self.find(pk))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Remove a price: the previous one applies again, in reports of the past too."""
        prices.remove_price(principal=self.principal, price=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)
