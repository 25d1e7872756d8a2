"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.scheduling.api import budgets, claims, nodes, pools, proposals, queue, quotas, reports, requests, rounds

urlpatterns = [
    path("budgets/", budgets.BudgetList.as_view()),
    path("budgets/<int:pk>/", budgets.BudgetDetail.as_view()),
    path("claims/", claims.ClaimList.as_view()),
    path("claims/<uuid:uid>/", claims.ClaimDetail.as_view()),
    path("claims/<uuid:uid>/release/", claims.ClaimRelease.as_view()),
    path("claims/<uuid:uid>/renew/", claims.ClaimRenew.as_view()),
    path("claims/<uuid:uid>/env/", claims.ClaimEnv.as_view()),
    path("assignments/", claims.AssignmentList.as_view()),
    path("assignments/<uuid:uid>/", claims.AssignmentDetail.as_view()),
    path("nodes/<slug:name>/forget/", nodes.NodeForget.as_view()),
    path("pools/<slug:name>/", pools.PoolDetail.as_view()),
    path("pools/<slug:name>/rebalance/", proposals.PoolRebalance.as_view()),
    path("proposals/", proposals.ProposalList.as_view()),
    path("proposals/<uuid:uid>/", proposals.ProposalDetail.as_view()),
    path("proposals/<uuid:uid>/accept/", proposals.ProposalAccept.as_view()),
    path("proposals/<uuid:uid>/dismiss/", proposals.ProposalDismiss.as_view()),
    path("pools/<slug:name>/queue/", queue.PoolQueue.as_view()),
    path("quotas/", quotas.QuotaList.as_view()),
    path("quotas/<int:pk>/", quotas.QuotaDetail.as_view()),
    path("quota-requests/", requests.RequestList.as_view()),
    path("quota-requests/<uuid:uid>/", requests.RequestDetail.as_view()),
    path("quota-requests/<uuid:uid>/approve/", requests.RequestApprove.as_view()),
    path("quota-requests/<uuid:uid>/deny/", requests.RequestDeny.as_view()),
    path("quota-requests/<uuid:uid>/counter/", requests.RequestCounter.as_view()),
    path("quota-requests/<uuid:uid>/accept/", requests.RequestAccept.as_view()),
    path("quota-requests/<uuid:uid>/withdraw/", requests.RequestWithdraw.as_view()),
    path("reports/usage/", reports.UsageReport.as_view()),
    path("rounds/", rounds.RoundList.as_view()),
    path("rounds/<int:pk>/", rounds.RoundDetail.as_view()),
    path("utilization/", rounds.Utilization.as_view()),
]
