"""Counters and histograms of all processes (`gpucloud.counters`), for Prometheus."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis import RedisError

from gpucloud import counters
from gpucloud.counters import Counter, Histogram

# Families of apps above that read their own rows: each returns its families.
FURTHER: list[Callable[[], Iterable[Metric]]] = []
Parts = dict[tuple[str, ...], dict[str | None, float]]


def families() -> Iterator[Metric]:
    """Yield the counters, in one round trip to Redis; if it does not answer, a gauge says so. Then those of FURTHER."""
    counters.write()
    found: dict[str, Parts] = defaultdict(lambda: defaultdict(dict))
    readable = True
    try:
        for count in counters.read():
            found[count.name][count.values][count.part] = count.amount
    except (RedisError, OSError):
        readable = False
    said = "1 where the counts of all processes could be read from Redis; else they are left out."
    yield GaugeMetricFamily("gpucloud_counters_readable", said, value=float(readable))
    if readable:
        for kind in counters.EVERY:
            # Counts of another version with other labels are not shown.
            parts = {key: value for key, value in found[kind.name].items() if len(key) == len(kind.labels)}
            yield _counter(kind, parts) if isinstance(kind, Counter) else _histogram(kind, parts)
    for further in FURTHER:
        yield from further()


def _counter(kind: Counter, parts: Parts) -> CounterMetricFamily:
    family = CounterMetricFamily(kind.name, kind.words, labels=kind.labels)
    for values, amounts in parts.items():
        family.add_metric(values, amounts.get(None, 0.0))
    if not kind.labels and not parts:
        family.add_metric([], 0.0)
    return family


def _histogram(kind: Histogram, parts: Parts) -> HistogramMetricFamily:
    family = HistogramMetricFamily(kind.name, kind.words, labels=kind.labels)
    bounds = [*map(repr, kind.bounds), "+Inf"]
    if not kind.labels and not parts:
        parts = {(): {}}
    for values, amounts in parts.items():
        below = accumulate(amounts.get(str(index), 0.0) for index in range(len(bounds)))
        family.add_metric(values, list(zip(bounds, below, strict=True)), amounts.get(counters.SUM, 0.0))
    return family
