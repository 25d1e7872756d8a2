"""The app's configuration."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.conf import settings
from prometheus_client.core import Metric

from gpucloud import counter_metrics

if TYPE_CHECKING:
    from apps.nodes.models import Node


def _heard() -> Iterable[Metric]:
    from apps.clusters import metrics  # noqa: PLC0415 - its models are not loaded yet while apps are

    return metrics.heard()


def _vouched_name(node: "Node") -> str:
    from apps.clusters.services import joining  # noqa: PLC0415 - its models are not loaded yet while apps are

    return joining.vouched_name(node)


class ClustersConfig(AppConfig):
    """Configuration of the clusters app."""

    name = "apps.clusters"
    label = "clusters"
    verbose_name = "Clusters"

    def ready(self) -> None:
        """Add what other apps read of clusters; validate the settings of the webhooks. Raises ImproperlyConfigured."""
        counter_metrics.FURTHER.append(_heard)
        from apps.clusters import checks  # noqa: F401, PLC0415 - registers itself; models load after this module
        from apps.nodes.providers import vouched_name  # noqa: PLC0415 - models of nodes load after this module

        vouched_name.set(_vouched_name)
        if settings.ADMISSION_TRANSLATE or settings.ADMISSION_MIG != "leave":
            from apps.clusters.admission import policy  # noqa: PLC0415 - loads slowly, and few processes read pods

            policy.require_translatable(settings.ADMISSION_TRANSLATE)
            policy.require_mig_word(settings.ADMISSION_MIG)
