"""The app's configuration."""

from django.apps import AppConfig


class RemoteConfig(AppConfig):
    """Remote shares. It has no rows: a ticket lives at its node, for two minutes."""

    name = "apps.remote"
    label = "remote"
    verbose_name = "Remote shares"

    def ready(self) -> None:
        """Provide to quotas who tells nodes of a tenant's permission, and to scheduling a place for figures."""
        from apps.quotas.providers import remote_permits  # noqa: PLC0415 - models, once apps are loaded
        from apps.remote import figures, permits  # noqa: PLC0415 - likewise
        from apps.scheduling.providers import remote_figures  # noqa: PLC0415 - likewise

        remote_permits.set(permits)
        remote_figures.set(figures)
