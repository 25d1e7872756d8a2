"""Routes of the pages."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from apps.scheduling.pages import claims, health, nodes, overview, queue, reallocation, reservations, sign_in

urlpatterns = [
    path("sign-in/", sign_in.SignIn.as_view(), name="sign-in"),
    path("sign-in/oidc/", sign_in.single_sign_on, name="single-sign-on"),
    path("sign-in/oidc/return/", sign_in.single_sign_on_return, name="single-sign-on-return"),
    path("sign-out/", LogoutView.as_view(next_page="sign-in"), name="sign-out"),
    path("", overview.overview, name="overview"),
    path("nodes/", nodes.node_list, name="nodes"),
    path("nodes/<slug:name>/", nodes.node_detail, name="node"),
    path("nodes/<slug:name>/series/", nodes.node_series, name="node-series"),
    path("nodes/<slug:name>/cordon/", nodes.cordon, name="cordon"),
    path("nodes/<slug:name>/repair/", nodes.repair, name="repair"),
    path("nodes/<slug:name>/unfence/", health.unfence, name="unfence"),
    path("gpus/<slug:uuid>/clear/", health.clear, name="clear"),
    path("queue/", queue.queue_page, name="queue"),
    path("reservations/", reservations.reservation_list, name="reservations"),
    path("reservations/new/", reservations.new_reservation, name="new-reservation"),
    path("reservations/<uuid:uid>/", reservations.reservation_detail, name="reservation"),
    path("reservations/<uuid:uid>/release/", reservations.give_back, name="give-back"),
    path("claims/", claims.claim_list, name="claims"),
    path("claims/new/", claims.new_claim, name="new-claim"),
    path("claims/<uuid:uid>/", claims.claim_detail, name="claim"),
    path("claims/<uuid:uid>/series/", claims.claim_series, name="claim-series"),
    path("claims/<uuid:uid>/resize/", reallocation.resize, name="resize"),
    path("claims/<uuid:uid>/release/", reallocation.release, name="release"),
]
