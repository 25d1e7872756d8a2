"""/prices/: the price book. Everyone signed in may read it; their reports rest on it."""

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
    """What a GPU-hour of a model costs from a day on."""

    id = serializers.IntegerField(source="pk", read_only=True)
    gpu_model = serializers.CharField(max_length=200, help_text="As the nodes' agents name it: see /api/v1/gpus/.")
    pool = PoolByName(allow_null=True, default=None, help_text="Null: every pool that has no price of its own.")
    valid_from = serializers.DateField(help_text="The day, in UTC, from whose beginning it holds.")
    per_gpu_hour = serializers.DecimalField(
        max_digits=12, decimal_places=PRICE_PLACES, min_value=0, help_text='For a whole GPU, as text: "2.50".'
    )
    currency = serializers.SerializerMethodField(help_text="The installation's.")
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def get_currency(self, price: Any) -> str:
        """One for all."""
        return str(settings.CURRENCY)


class PriceFilter(Changed):
    """Prices of what and where."""

    pool = filters.CharFilter(field_name="pool__name")

    class Meta:
        model = Price
        fields = ["gpu_model", "pool", "updated_since"]


class PriceView(ApiView):
    """What price views share."""

    serializer_class = PriceSerializer
    queryset = Price.objects.select_related("pool")
    read_scope, write_scope = "quotas:read", "quotas:write"
    operator_methods = CHANGES


class PriceList(PriceView, ListMixin):
    """Prices: what a GPU-hour costs."""

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
        """Take a price back: the one before it holds again, in reports of the past too."""
        prices.remove_price(principal=self.principal, price=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)
