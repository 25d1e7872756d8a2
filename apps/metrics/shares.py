"""Metrics of claims on GPUs, under gpu-manager's names, so that dashboards made for it go on working.

Its pods and containers are claims here: `namespace` is the tenant, `pod_name` the claim's uid, which is unique, and
`container_name` the claim's name. The agent has the same for its own node (`agent/metrics.py`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from prometheus_client.core import GaugeMetricFamily

from apps.nodes.models import Sample
from apps.scheduling.models import Assignment

MIB = 1 << 20
POD = ("container_name", "namespace", "node", "pod_name")
TOTAL = "total"


class Family(NamedTuple):
    """A metric of gpu-manager: its HELP, and the label that names the GPU."""

    words: str
    label: str


USED_CORE, USED_MEMORY = "container_gpu_utilization", "container_gpu_memory_total"
ASKED_CORE, ASKED_MEMORY = "container_request_gpu_utilization", "container_request_gpu_memory"
FAMILIES = {
    USED_CORE: Family("gpu utilization", "gpu"),
    USED_MEMORY: Family("gpu memory usage in MiB", "gpu_memory"),
    ASKED_CORE: Family("request of gpu utilization", "req_of_gpu"),
    ASKED_MEMORY: Family("request of gpu memory in MiB", "req_of_gpu_memory"),
}


class Share(NamedTuple):
    """One assignment. `pod` are the values of `POD`."""

    uid: UUID
    pod: tuple[str, str, str, str]
    gpu_index: int
    core_request: int
    memory_mib: int


Samples = Mapping[UUID, Sample]


def live(most: int) -> list[Share]:
    """Return the assignments that hold something, at most this many; one query."""
    rows = Assignment.objects.live().order_by("pk")
    pod = ("claim__name", "claim__tenant__slug", "gpu__node__name", "claim__uid")
    columns = rows.values_list("uid", *pod, "gpu__index", "core_request", "memory_mib")[:most]
    return [
        Share(uid, (name, tenant, node, str(claim)), index, core, memory)
        for uid, name, tenant, node, claim, index, core, memory in columns
    ]


def by_claim(shares: list[Share], samples: Samples) -> Iterator[GaugeMetricFamily]:
    """Yield gpu-manager's four metrics: used on each GPU and in all, requested in all."""
    families = {
        name: GaugeMetricFamily(name, family.words, labels=[*POD, family.label]) for name, family in FAMILIES.items()
    }
    totals: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for share in shares:
        total = totals[share.pod]
        total[ASKED_CORE] += share.core_request / 100
        total[ASKED_MEMORY] += share.memory_mib
        if sample := samples.get(share.uid):
            for name, value in {USED_CORE: sample.core_percent, USED_MEMORY: sample.memory_bytes / MIB}.items():
                families[name].add_metric([*share.pod, f"gpu{share.gpu_index}"], value)
                total[name] += value
    for each, sums in totals.items():
        for name, value in sums.items():
            families[name].add_metric([*each, TOTAL], value)
    yield from families.values()


def throttled(shares: list[Share], samples: Samples) -> Iterator[GaugeMetricFamily]:
    """Yield the part of the time in which launches waited for the claim's turn."""
    family = GaugeMetricFamily(
        "gpucloud_claim_throttled_ratio",
        "Part of the last second in which launches of the claim waited for its share, on the GPU with most of it.",
        labels=["claim", "name", "node", "tenant"],
    )
    most: dict[tuple[str, str, str, str], float] = {}
    for share in shares:
        if sample := samples.get(share.uid):
            most[share.pod] = max(most.get(share.pod, 0.0), (sample.throttled_percent or 0.0) / 100)
    for (name, tenant, node, claim), value in most.items():
        family.add_metric([claim, name, node, tenant], value)
    yield family


def borrowed(shares: list[Share], samples: Samples) -> Iterator[GaugeMetricFamily]:
    """Yield the borrowed memory of claims that may borrow: on their GPUs, and in host memory."""
    labels = ["claim", "name", "node", "tenant"]
    on_gpus = GaugeMetricFamily(
        "gpucloud_claim_memory_borrowed_bytes",
        "Memory of GPUs of the node that the claim has beyond what is promised to it.",
        labels=labels,
    )
    out = GaugeMetricFamily(
        "gpucloud_claim_memory_out_bytes",
        "Memory of the claim in the node's host memory, because others of its GPUs use theirs.",
        labels=labels,
    )
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for share in shares:
        if (sample := samples.get(share.uid)) and sample.borrowed_bytes is not None:
            sums[share.pod][0] += sample.borrowed_bytes
            sums[share.pod][1] += sample.memory_out_bytes or 0
    for (name, tenant, node, claim), values in sums.items():
        for family, value in zip((on_gpus, out), values, strict=True):
            family.add_metric([claim, name, node, tenant], value)
    yield from (on_gpus, out)
