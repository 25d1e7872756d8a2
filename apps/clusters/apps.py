"""The app's configuration."""

from django.apps import AppConfig
from django.conf import settings


class ClustersConfig(AppConfig):
    """Configuration of the clusters app."""

    name = "apps.clusters"
    label = "clusters"
    verbose_name = "Clusters"

    def ready(self) -> None:
        """Validate the settings of the webhooks. Raises ImproperlyConfigured."""
        if settings.ADMISSION_TRANSLATE:
            from apps.clusters.admission import policy  # noqa: PLC0415 - loads slowly, and few processes read pods

            policy.require_translatable(settings.ADMISSION_TRANSLATE)
