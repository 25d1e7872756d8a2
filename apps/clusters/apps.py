"""The app's configuration."""

from django.apps import AppConfig


class ClustersConfig(AppConfig):
    """Clusters of Kubernetes and what runs in them."""

    name = "apps.clusters"
    label = "clusters"
    verbose_name = "Clusters"
