"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.clusters.api import clusters, configurations, importing, joining, namespaces, standing

urlpatterns = [
    path("clusters/", clusters.ClusterList.as_view()),
    path("clusters/join/", joining.Join.as_view()),
    path("clusters/<slug:name>/", clusters.ClusterDetail.as_view()),
    path("clusters/<slug:name>/connection/", standing.Connection.as_view()),
    path("clusters/<slug:name>/quotas/", standing.Quotas.as_view()),
    path("clusters/<slug:name>/import/", importing.Import.as_view()),
    path("clusters/<slug:name>/pods/", clusters.PodList.as_view()),
    path("clusters/<slug:name>/resource-claims/", clusters.DeviceClaimList.as_view()),
    path("clusters/<slug:name>/namespaces/", namespaces.BindingList.as_view()),
    path("clusters/<slug:name>/namespaces/<int:pk>/", namespaces.BindingDetail.as_view()),
    path("scheduler-configuration/", configurations.SchedulerConfiguration.as_view()),
    path("webhook-configuration/", configurations.WebhookConfiguration.as_view()),
]
