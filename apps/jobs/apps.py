"""The app's configuration."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Jobs: commands under claims. Claims and nodes are of the apps below."""

    name = "apps.jobs"
    label = "jobs"
    verbose_name = "Jobs"

    def ready(self) -> None:
        """Provide the runs to the gateway of the agents."""
        from apps.jobs.services import gateway  # noqa: PLC0415 - models, once loaded
        from apps.scheduling.providers import jobs  # noqa: PLC0415 - likewise

        jobs.set(gateway)
