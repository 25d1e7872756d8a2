"""Collectors of a scrape: the families, their order, and the most series."""

from collections.abc import Iterable, Iterator

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apps.metrics import devices, pools, shares
from apps.nodes.services import latest
from apps.quotas.models import Pool
from gpucloud import counter_metrics


class Platform(Collector):
    """All metrics: of the platform as a whole, then of each GPU and claim."""

    def collect(self) -> Iterator[Metric]:
        """Yield all families: a dozen queries and one call to Redis, whatever there is."""
        known = list(Pool.objects.order_by("name"))
        for of_pools in (pools.queues, pools.idle, pools.rotation, pools.packed, pools.past_use):
            yield from of_pools(known)
        for part in (pools.claims, pools.nodes, pools.gpus, pools.quotas, pools.messages):
            yield from part()
        yield from counter_metrics.families()
        yield from _each(own=True)


class Devices(Collector):
    """The metrics of gpu-manager and dcgm-exporter, of all nodes."""

    def collect(self) -> Iterator[Metric]:
        """Yield the families of GPUs and claims: four queries."""
        yield from _each(own=False)


def _each(*, own: bool) -> Iterator[Metric]:
    """Yield the metrics of each GPU and claim, unless there are too many for one scrape: then scrape the agents."""
    most = settings.METRICS_MOST_DETAILS
    gpus, claims = devices.present(most + 1), shares.live(most + 1)
    left_out = max(len(gpus), len(claims)) > most
    if left_out:
        gpus, claims = [], []
    of_gpus, of_claims = latest.samples() if gpus or claims else ({}, {})
    reports = devices.health() if gpus else {}
    families: list[Iterable[Metric]] = [shares.by_claim(claims, of_claims), devices.families(gpus, of_gpus, reports)]
    if own:
        families += [shares.throttled(claims, of_claims), shares.borrowed(claims, of_claims)]
        words = "1 where there are more GPUs or assignments than METRICS_MOST_DETAILS: scrape the agents for them."
        families.append([GaugeMetricFamily("gpucloud_details_left_out", words, value=float(left_out))])
    for family in families:
        yield from family
