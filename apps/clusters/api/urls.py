"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.clusters.api import clusters, namespaces

urlpatterns = [
    path("clusters/", clusters.ClusterList.as_view()),
    path("clusters/<slug:name>/", clusters.ClusterDetail.as_view()),
    path("clusters/<slug:name>/pods/", clusters.PodList.as_view()),
    path("clusters/<slug:name>/namespaces/", namespaces.BindingList.as_view()),
    path("clusters/<slug:name>/namespaces/<int:pk>/", namespaces.BindingDetail.as_view()),
]
