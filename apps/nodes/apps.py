"""The app's configuration."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """Nodes, GPUs, the agents' gateway, utilisation."""

    name = "apps.nodes"
    label = "nodes"
    verbose_name = "Nodes"
