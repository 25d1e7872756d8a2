"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.scheduling.api import (
    claims,
    gpus,
    nodes,
    pools,
    proposals,
    queue,
    rounds,
)

urlpatterns = [
    path("claims/", claims.ClaimList.as_view()),
    path("claims/<uuid:uid>/", claims.ClaimDetail.as_view()),
    path("claims/<uuid:uid>/release/", claims.ClaimRelease.as_view()),
    path("claims/<uuid:uid>/renew/", claims.ClaimRenew.as_view()),
    path("claims/<uuid:uid>/env/", claims.ClaimEnv.as_view()),
    path("assignments/", claims.AssignmentList.as_view()),
    path("assignments/<uuid:uid>/", claims.AssignmentDetail.as_view()),
    path("gpus/<slug:uuid>/", gpus.GpuDetail.as_view()),
    path("gpus/<slug:uuid>/clear/", gpus.GpuClear.as_view()),
    path("nodes/<slug:name>/forget/", nodes.NodeForget.as_view()),
    path("nodes/<slug:name>/drain/", nodes.NodeDrain.as_view()),
    path("nodes/<slug:name>/drift/", nodes.NodeDrift.as_view()),
    path("nodes/<slug:name>/repair/", nodes.NodeRepair.as_view()),
    path("nodes/<slug:name>/lift-fence/", nodes.NodeLiftFence.as_view()),
    path("pools/<slug:name>/", pools.PoolDetail.as_view()),
    path("pools/<slug:name>/consolidation/", pools.PoolConsolidation.as_view()),
    path("pools/<slug:name>/rebalance/", proposals.PoolRebalance.as_view()),
    path("proposals/", proposals.ProposalList.as_view()),
    path("proposals/<uuid:uid>/", proposals.ProposalDetail.as_view()),
    path("proposals/<uuid:uid>/accept/", proposals.ProposalAccept.as_view()),
    path("proposals/<uuid:uid>/dismiss/", proposals.ProposalDismiss.as_view()),
    path("pools/<slug:name>/queue/", queue.PoolQueue.as_view()),
    path("pools/<slug:name>/fair-share/", queue.PoolFairShare.as_view()),
    path("rounds/", rounds.RoundList.as_view()),
    path("rounds/<int:pk>/", rounds.RoundDetail.as_view()),
]
