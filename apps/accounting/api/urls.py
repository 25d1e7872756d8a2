"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.accounting.api.efficiency import EfficiencyReport
from apps.accounting.api.reports import UsageReport
from apps.accounting.api.utilization import Utilization

urlpatterns = [
    path("reports/efficiency/", EfficiencyReport.as_view()),
    path("reports/usage/", UsageReport.as_view()),
    path("utilization/", Utilization.as_view()),
]
