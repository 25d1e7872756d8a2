"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.suspension.api import claims, pools

urlpatterns = [
    path("claims/<uuid:uid>/suspend/", claims.ClaimSuspend.as_view()),
    path("claims/<uuid:uid>/resume/", claims.ClaimResume.as_view()),
    path("claims/<uuid:uid>/move/", claims.ClaimMove.as_view()),
    path("pools/<slug:name>/consolidation/accept/", pools.ConsolidationAccept.as_view()),
]
