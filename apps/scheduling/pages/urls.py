"""Routes of the pages."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from apps.scheduling.pages import claims, nodes, overview, reallocation
from apps.scheduling.pages.sign_in import SignInForm

sign_in = LoginView.as_view(
    template_name="sign_in.html", authentication_form=SignInForm, redirect_authenticated_user=True
)

urlpatterns = [
    path("sign-in/", sign_in, name="sign-in"),
    path("sign-out/", LogoutView.as_view(next_page="sign-in"), name="sign-out"),
    path("", overview.overview, name="overview"),
    path("nodes/", nodes.node_list, name="nodes"),
    path("nodes/<slug:name>/", nodes.node_detail, name="node"),
    path("nodes/<slug:name>/series/", nodes.node_series, name="node-series"),
    path("nodes/<slug:name>/cordon/", nodes.cordon, name="cordon"),
    path("claims/", claims.claim_list, name="claims"),
    path("claims/new/", claims.new_claim, name="new-claim"),
    path("claims/<uuid:uid>/", claims.claim_detail, name="claim"),
    path("claims/<uuid:uid>/series/", claims.claim_series, name="claim-series"),
    path("claims/<uuid:uid>/resize/", reallocation.resize, name="resize"),
    path("claims/<uuid:uid>/release/", reallocation.release, name="release"),
]
