"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.quotas.api import limits, organisations, people, prices, quotas, tenants, tokens, webhooks

urlpatterns = [
    path("me/", people.Me.as_view()),
    path("me/sessions/", people.MySessions.as_view()),
    path("me/sessions/<slug:session>/", people.MySession.as_view()),
    path("me/tokens/", people.MyTokens.as_view()),
    path("users/", people.UserList.as_view()),
    path("users/<str:username>/", people.UserDetail.as_view()),
    path("users/<str:username>/password-reset/", people.PasswordReset.as_view()),
    path("invitations/", people.InvitationList.as_view()),
    path("invitations/<uuid:uid>/", people.InvitationDetail.as_view()),
    path("tenants/", tenants.TenantList.as_view()),
    path("tenants/<slug:slug>/members/", tenants.MemberList.as_view()),
    path("tenants/<slug:slug>/members/<str:username>/", tenants.MemberDetail.as_view()),
    path("organisations/", organisations.OrganisationList.as_view()),
    path("pools/", tenants.PoolList.as_view()),
    path("prices/", prices.PriceList.as_view()),
    path("prices/<int:pk>/", prices.PriceDetail.as_view()),
    path("limit-ranges/", limits.LimitRangeList.as_view()),
    path("limit-ranges/<int:pk>/", limits.LimitRangeDetail.as_view()),
    path("member-limits/", limits.MemberLimitList.as_view()),
    path("member-limits/<int:pk>/", limits.MemberLimitDetail.as_view()),
    path("quotas/<int:pk>/ledger/", quotas.QuotaLedger.as_view()),
    path("tokens/", tokens.TokenList.as_view()),
    path("tokens/<slug:key>/", tokens.TokenDetail.as_view()),
    path("tokens/<slug:key>/rotate/", tokens.TokenRotation.as_view()),
    path("webhooks/", webhooks.WebhookList.as_view()),
    path("webhooks/<uuid:uid>/", webhooks.WebhookDetail.as_view()),
    path("webhooks/<uuid:uid>/rotate/", webhooks.WebhookRotation.as_view()),
    path("webhooks/<uuid:uid>/test/", webhooks.WebhookTest.as_view()),
    path("webhooks/<uuid:uid>/deliveries/", webhooks.DeliveryList.as_view()),
    path("webhooks/<uuid:uid>/deliveries/<uuid:delivery>/redeliver/", webhooks.DeliveryAgain.as_view()),
    path("audit/", tokens.AuditList.as_view()),
]
