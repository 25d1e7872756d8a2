"""The app's configuration."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    """Claims, assignments, rounds."""

    name = "apps.scheduling"
    label = "scheduling"
    verbose_name = "Scheduling"

    def ready(self) -> None:
        """Provide desired states to the agents' gateway, and claims' charges to quotas."""
        from apps.nodes.providers import node_claims  # noqa: PLC0415 - models, once apps are loaded
        from apps.quotas.providers import claim_charges  # noqa: PLC0415 - likewise
        from apps.scheduling import gateway  # noqa: PLC0415 - likewise
        from apps.scheduling.services.charging import states  # noqa: PLC0415 - likewise

        node_claims.set(gateway.Gateway())
        claim_charges.set(states)
