"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.forecasts.api import forecasts

urlpatterns = [path("claims/<uuid:uid>/forecast/", forecasts.ClaimForecastView.as_view())]
