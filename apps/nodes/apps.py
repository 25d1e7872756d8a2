"""The app's configuration."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """Nodes, GPUs, the agents' gateway, utilisation."""

    name = "apps.nodes"
    label = "nodes"
    verbose_name = "Nodes"

    def ready(self) -> None:
        """Tell who sets quotas what the machines have."""
        from apps.nodes.services.capacity import of_pool  # noqa: PLC0415 - models, once apps are loaded
        from apps.quotas import capacities  # noqa: PLC0415 - likewise

        capacities.register(of_pool)
