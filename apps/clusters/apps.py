"""The app's configuration."""

from collections.abc import Iterable

from django.apps import AppConfig
from django.conf import settings
from prometheus_client.core import Metric

from gpucloud import counter_metrics


def _heard() -> Iterable[Metric]:
    from apps.clusters import metrics  # noqa: PLC0415 - its models are not loaded yet while apps are

    return metrics.heard()


class ClustersConfig(AppConfig):
    """Configuration of the clusters app."""

    name = "apps.clusters"
    label = "clusters"
    verbose_name = "Clusters"

    def ready(self) -> None:
        """Add the metrics of clusters; validate the settings of the webhooks. Raises ImproperlyConfigured."""
        counter_metrics.FURTHER.append(_heard)
        if settings.ADMISSION_TRANSLATE:
            from apps.clusters.admission import policy  # noqa: PLC0415 - loads slowly, and few processes read pods

            policy.require_translatable(settings.ADMISSION_TRANSLATE)
