"""The view of /claims/{uid}/forecast/."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.forecasts.provided import band_of
from apps.scheduling.api.claims import ClaimView
from gpucloud.api import shown
from gpucloud.api.serializers import Strict

STATES = ["claim", "tenant", "none"]


class ForecastWindowSerializer(Strict):
    """A window of five minutes: its highest minute, and what was forecast for it. Percent of a GPU."""

    at = shown.time()
    used_percent = shown.number("Null: not measured, or not over yet.", null=True)
    expected_percent = shown.number("The median. Null: no forecast.", null=True)
    upper_percent = shown.number("The quantile that is kept for the owner. Null: no forecast.", null=True)


class ClaimForecastSerializer(Strict):
    """The forecast of a claim, how good such forecasts were, and the last day of windows."""

    claim = shown.uid()
    source = shown.choice(STATES, "Whose history it is made of; `none`: too little is known.")
    at = shown.time(null=True)
    days = shown.number("Measured days behind it.")
    risk_percent = shown.integer("The probability that the owner needs more.", null=True)
    expected_percent = shown.number(null=True)
    upper_percent = shown.number(null=True)
    judged = shown.integer("Forecasts that were compared with the use.")
    wrong_percent = shown.number("Those that were too low, a mean over about a week.", null=True)
    windows = ForecastWindowSerializer(many=True, read_only=True)


class ClaimForecastView(ClaimView):
    """The forecast of a claim."""

    serializer_class: Any = ClaimForecastSerializer

    @extend_schema(responses={200: ClaimForecastSerializer})
    def get(self, request: Request, uid: str) -> Response:
        """Show what the claim is forecast to need, and how often such forecasts were too low."""
        return Response(ClaimForecastSerializer(band_of(self.named(uid))).data)
