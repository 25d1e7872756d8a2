"""The app's configuration."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    """Claims, assignments, rounds."""

    name = "apps.scheduling"
    label = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        """Tell the agents' gateway who knows what is wanted."""
        from apps.nodes.gateway import registry  # noqa: PLC0415 - models, once apps are loaded
        from apps.quotas import holdings  # noqa: PLC0415 - likewise
        from apps.scheduling import gateway  # noqa: PLC0415 - likewise
        from apps.scheduling.services.charging.states import charged_by_claim, charged_by_user  # noqa: PLC0415 - likewise

        registry.register(gateway.Gateway())
        holdings.register(charged_by_claim, charged_by_user)
