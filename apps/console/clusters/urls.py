"""Routes of the clusters' pages."""

from django.urls import path

from apps.console.clusters import clusters, configuration, importing, namespaces

urlpatterns = [
    path("clusters/", clusters.ClusterList.as_view(), name="clusters"),
    path("new-cluster/", clusters.new_cluster, name="new-cluster"),
    path("clusters/<slug:name>/", clusters.cluster_detail, name="cluster"),
    path("clusters/<slug:name>/connection/", clusters.connection, name="cluster-connection"),
    path("clusters/<slug:name>/quotas/", namespaces.quotas, name="cluster-quotas"),
    path("clusters/<slug:name>/remove/", clusters.remove, name="remove-cluster"),
    path("clusters/<slug:name>/import/", importing.import_page, name="import-cluster"),
    path("clusters/<slug:name>/namespaces/", namespaces.bind, name="bind-namespace"),
    path("clusters/<slug:name>/namespaces/<int:pk>/", namespaces.unbind, name="unbind-namespace"),
    path("clusters/<slug:name>/namespaces/<int:pk>/tenant/", namespaces.rebind, name="rebind-namespace"),
    path("integrations/", configuration.configuration, name="integrations"),
]
