"""The app's configuration."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    """Claims, assignments, rounds."""

    name = "apps.scheduling"
    label = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        """Tell the agents' gateway who knows what is wanted."""
        from apps.nodes.gateway import registry
        from apps.scheduling import gateway

        registry.register(gateway.Gateway())
