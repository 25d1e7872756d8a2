"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.accounting.api import budgets, organisations, quotas, requests
from apps.accounting.api.efficiency import EfficiencyReport
from apps.accounting.api.focus import FocusReport
from apps.accounting.api.opencost import OpencostReport
from apps.accounting.api.reports import UsageReport
from apps.accounting.api.utilization import Utilization

urlpatterns = [
    path("budgets/", budgets.BudgetList.as_view()),
    path("budgets/<int:pk>/", budgets.BudgetDetail.as_view()),
    path("organisations/<slug:slug>/", organisations.OrganisationDetail.as_view()),
    path("organisation-quotas/", organisations.OrganisationQuotaList.as_view()),
    path("organisation-quotas/<int:pk>/", organisations.OrganisationQuotaDetail.as_view()),
    path("tenants/<slug:slug>/", organisations.TenantDetail.as_view()),
    path("quotas/", quotas.QuotaList.as_view()),
    path("quotas/<int:pk>/", quotas.QuotaDetail.as_view()),
    path("quota-requests/", requests.RequestList.as_view()),
    path("quota-requests/<uuid:uid>/", requests.RequestDetail.as_view()),
    path("quota-requests/<uuid:uid>/forward/", requests.RequestForward.as_view()),
    path("quota-requests/<uuid:uid>/approve/", requests.RequestApprove.as_view()),
    path("quota-requests/<uuid:uid>/deny/", requests.RequestDeny.as_view()),
    path("quota-requests/<uuid:uid>/counter/", requests.RequestCounter.as_view()),
    path("quota-requests/<uuid:uid>/accept/", requests.RequestAccept.as_view()),
    path("quota-requests/<uuid:uid>/withdraw/", requests.RequestWithdraw.as_view()),
    path("reports/efficiency/", EfficiencyReport.as_view()),
    path("reports/focus/", FocusReport.as_view()),
    path("reports/opencost/", OpencostReport.as_view()),
    path("reports/usage/", UsageReport.as_view()),
    path("utilization/", Utilization.as_view()),
]
