"""The app's configuration."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    """Configuration of the nodes app."""

    name = "apps.nodes"
    label = "nodes"
    verbose_name = "Nodes"

    def ready(self) -> None:
        """Provide the capacity of pools to quotas."""
        from apps.nodes.services import capacity  # noqa: PLC0415 - models, once apps are loaded
        from apps.quotas.providers import pool_capacity  # noqa: PLC0415 - likewise

        pool_capacity.set(capacity)
