"""Routes of the clusters' pages."""

from django.urls import path

from apps.console.clusters import clusters, configuration, importing, namespaces

urlpatterns = [
    path("clusters/", clusters.ClusterList.as_view(), name="clusters"),
    path("new-cluster/", clusters.NewCluster.as_view(), name="new-cluster"),
    path("clusters/<slug:name>/", clusters.ClusterPage.as_view(), name="cluster"),
    path("clusters/<slug:name>/connection/", clusters.ConnectionPage.as_view(), name="cluster-connection"),
    path("clusters/<slug:name>/quotas/", namespaces.quotas, name="cluster-quotas"),
    path("clusters/<slug:name>/remove/", clusters.remove, name="remove-cluster"),
    path("clusters/<slug:name>/import/", importing.import_page, name="import-cluster"),
    path("clusters/<slug:name>/namespaces/", namespaces.Bind.as_view(), name="bind-namespace"),
    path("clusters/<slug:name>/namespaces/<int:pk>/", namespaces.unbind, name="unbind-namespace"),
    path("clusters/<slug:name>/namespaces/<int:pk>/tenant/", namespaces.Rebind.as_view(), name="rebind-namespace"),
    path("integrations/", configuration.configuration, name="integrations"),
]
