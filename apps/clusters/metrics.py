"""Metrics of clusters: when each was last heard, by the watch over pods and by the extender."""

from collections.abc import Iterable, Iterator, Mapping

from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from apps.clusters.models import Cluster

WATCH = "Seconds since the watch over the cluster's pods last heard its API server, if only a bookmark."
EXTENDER = "Seconds since the extender last heard the cluster's API server of this kind, if only a bookmark."


def heard() -> Iterator[Metric]:
    """Yield the age of each enabled cluster that was ever heard: one query."""
    family, now = GaugeMetricFamily("gpucloud_cluster_heard_seconds", WATCH, labels=["cluster"]), timezone.now()
    rows = Cluster.objects.filter(enabled=True, synced_at__isnull=False).order_by("name")
    for name, synced_at in rows.values_list("name", "synced_at"):
        assert synced_at is not None
        family.add_metric([name], max(0.0, (now - synced_at).total_seconds()))
    yield family


class Ages(Collector):
    """The ages of an extender's clusters, by name and kind of objects."""

    def __init__(self, ages: Mapping[str, Mapping[str, float]]) -> None:
        self._ages = ages

    def collect(self) -> Iterable[Metric]:
        """Yield one family."""
        family = GaugeMetricFamily("gpucloud_extender_heard_seconds", EXTENDER, labels=["cluster", "kind"])
        for cluster, by_kind in sorted(self._ages.items()):
            for kind, seconds in sorted(by_kind.items()):
                family.add_metric([cluster, kind], seconds)
        yield family


def as_text(ages: Mapping[str, Mapping[str, float]]) -> bytes:
    """Return an extender's metrics in Prometheus' text format."""
    return generate_latest(Ages(ages))
