"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.groups.api import groups

urlpatterns = [
    path("groups/", groups.GroupList.as_view()),
    path("groups/<str:key>/", groups.GroupDetail.as_view()),
]
