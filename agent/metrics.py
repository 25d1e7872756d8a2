"""`/metrics` of one node for Prometheus: gpu-manager's and dcgm-exporter's names, and the agent's own.

Off unless GPUCLOUD_METRICS names an address; on loopback unless it names another. The answer names every tenant on the
node and needs no token, as with gpu-manager and dcgm-exporter: the network decides who may reach the port. The
library's server answers in threads of its own. Its facts are taken in the event loop, which alone may touch the node,
and cost no reading of the machine: they are those of the last sample, at most a second old.
"""

import asyncio
import copy
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from msgspec import UNSET
from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from agent import wire
from agent.logs import log

MIB = 1 << 20
# The loop never blocks for so long, except on an overloaded machine.
ANSWER_SECONDS = 5.0
TOTAL = "total"
POD = ("container_name", "namespace", "node", "pod_name")
# gpu-manager's: the HELP text, and the label for the GPU.
SHARES = {
    "container_gpu_utilization": ("gpu utilization", "gpu"),
    "container_gpu_memory_total": ("gpu memory usage in MiB", "gpu_memory"),
    "container_request_gpu_utilization": ("request of gpu utilization", "req_of_gpu"),
    "container_request_gpu_memory": ("request of gpu memory in MiB", "req_of_gpu_memory"),
}
DEVICE = ("gpu", "UUID", "device", "modelName", "Hostname")
# dcgm-exporter's.
DEVICES = {
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB).",
    "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C).",
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W).",
    "DCGM_FI_DEV_SM_CLOCK": "SM clock frequency (in MHz).",
    "DCGM_FI_DEV_MEM_CLOCK": "Memory clock frequency (in MHz).",
    "DCGM_FI_DEV_XID_ERRORS": "Value of the last XID error encountered.",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "Total number of single-bit volatile ECC errors.",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "Total number of double-bit volatile ECC errors.",
    "DCGM_FI_PROF_SM_ACTIVE": "The ratio of cycles an SM has at least 1 warp assigned.",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "Ratio of cycles the tensor (HMMA) pipe is active.",
    "DCGM_FI_PROF_DRAM_ACTIVE": "Ratio of cycles the device memory interface is active sending or receiving data.",
}
REMOTE = {
    "channels": "Connections of programs on other machines to the claim's remoting server.",
    "trip_seconds": "Time to such a client and back, as last measured.",
    "received_bytes": "Bytes that such programs have sent.",
    "sent_bytes": "Bytes that they were sent.",
    "turns": "Round trips of such programs: their requests that waited for an answer.",
}
BORROWED = {
    "borrowed_bytes": "Memory of the GPU that the assignment has beyond what is promised to it.",
    "out_bytes": "Memory of the assignment that is in host memory because others of its GPU use theirs.",
    "moved_bytes": "Bytes that moved between the GPU and host memory, in both directions, since the agent started.",
    "stood_seconds": "Time for which the assignment's programs stood still while memory moved, since then.",
}
# In seconds: a claim in force is prepared within milliseconds, and the kubelet waits 45 s.
PREPARE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 45.0)


class Durations:
    """Durations of one kind, counted by PREPARE_BOUNDS."""

    def __init__(self) -> None:
        self.counts = [0] * (len(PREPARE_BOUNDS) + 1)
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(PREPARE_BOUNDS, seconds)] += 1
        self.sum_seconds += seconds


class Prepares:
    """The preparations of ResourceClaims for a kubelet since the agent started."""

    def __init__(self) -> None:
        # Until the claim's limits were in force; and the agent's own work.
        self.durations = {"wait": Durations(), "work": Durations()}
        self.refusals = 0

    def note(self, *, waited_seconds: float, worked_seconds: float) -> None:
        """Count one prepared claim."""
        self.durations["wait"].add(waited_seconds)
        self.durations["work"].add(worked_seconds)


class Facts(NamedTuple):
    """The agent's state at this moment."""

    node: str
    hostname: str
    gpus: tuple[wire.Gpu, ...]
    wanted: wire.Desired | None
    observed: wire.Observed
    # The last sample; None before the first.
    usage: wire.Usage | None
    connected: bool
    unacknowledged: int
    arbiter_running: bool
    arbiter_restarts: int
    findings: int
    # The last XID error of each GPU since the agent started, by uuid.
    xids: Mapping[str, int]
    # The node's name in its cluster; None if it is in none.
    kubernetes_node: str | None = None
    # The last report of the GPUs' health; None before the first.
    health: wire.Health | None = None
    # None: the agent is no driver for Dynamic Resource Allocation.
    prepares: Prepares | None = None
    # What remote clients have moved, by claim (`agent.remote.sessions.Counts`).
    remote: Mapping[str, Mapping[str, float]] = {}
    # By assignment that borrows memory: bytes that moved, and nanoseconds for which its programs stood still.
    counted: Mapping[str, tuple[int, int]] = {}
    # By assignment, in seconds (`Totals.longest_kernel_us`).
    longest_kernels: Mapping[str, float] = {}


class Exporter(Collector):
    """The answer to a scrape. `facts` is called in the loop."""

    def __init__(self, facts: Callable[[], Facts], loop: asyncio.AbstractEventLoop) -> None:
        self._facts = facts
        self._loop = loop

    def listen(self, host: str, port: int) -> None:
        """Answer at this address for as long as the process lives. Raises OSError."""
        start_http_server(port, addr=host, registry=self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; called in a thread of the server's."""
        facts = asyncio.run_coroutine_threadsafe(self._take(), self._loop).result(ANSWER_SECONDS)
        for families in (_shares(facts), _devices(facts), _agent_metrics(facts)):
            yield from families

    async def _take(self) -> Facts:
        facts = self._facts()
        # The rest is read in another thread.
        return facts._replace(prepares=copy.deepcopy(facts.prepares))


def _shares(facts: Facts) -> Iterable[Metric]:
    families = {name: GaugeMetricFamily(name, words, labels=[*POD, label]) for name, (words, label) in SHARES.items()}
    used = {one.uid: one for one in facts.usage.assignments} if facts.usage else {}
    index = {gpu.uuid: gpu.index for gpu in facts.gpus}
    # Summed by labels: a pod and the one before it, whose claim is being released, have the same names.
    sums: dict[str, dict[tuple[str, ...], float]] = {name: defaultdict(float) for name in SHARES}
    for wanted in facts.wanted.assignments if facts.wanted else ():
        pod = _pod(wanted, facts)
        asked = {"container_request_gpu_utilization": wanted.core_request / 100}
        for name, value in {**asked, "container_request_gpu_memory": wanted.memory_bytes / MIB}.items():
            sums[name][*pod, TOTAL] += value
        if usage := used.get(wanted.uid):
            values = {"container_gpu_utilization": usage.core_percent}
            for name, value in {**values, "container_gpu_memory_total": usage.memory_bytes / MIB}.items():
                sums[name][*pod, f"gpu{index.get(wanted.gpu_uuid, 'none')}"] += value
                sums[name][*pod, TOTAL] += value
    for name, by_labels in sums.items():
        for labels, value in by_labels.items():
            families[name].add_metric(labels, value)
    return families.values()


def _pod(wanted: wire.Assignment, facts: Facts) -> tuple[str, ...]:
    """Return the values of POD: the names of a cluster's container, or the nearest ones of any other claim."""
    if wanted.pod is not None:
        node = facts.kubernetes_node or facts.node
        return wanted.pod.container, wanted.pod.namespace, node, wanted.pod.name
    return wanted.claim_name or wanted.claim_uid, wanted.tenant, facts.node, wanted.claim_uid


def _health_values(one: wire.GpuHealth | None) -> dict[str, float | None]:
    if one is None:
        return {}
    return {
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": one.ecc_corrected,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": one.ecc_uncorrected,
        "DCGM_FI_PROF_SM_ACTIVE": _ratio(one.sm_active_percent),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _ratio(one.tensor_active_percent),
        "DCGM_FI_PROF_DRAM_ACTIVE": _ratio(one.dram_active_percent),
    }


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _devices(facts: Facts) -> Iterable[Metric]:
    families = {name: GaugeMetricFamily(name, words, labels=DEVICE) for name, words in DEVICES.items()}
    known = {gpu.uuid: gpu for gpu in facts.gpus}
    health = {one.uuid: one for one in facts.health.gpus} if facts.health else {}
    for usage in facts.usage.gpus if facts.usage else ():
        if gpu := known.get(usage.uuid):
            labels = [str(gpu.index), gpu.uuid, f"nvidia{gpu.index}", gpu.model, facts.hostname]
            values = _health_values(health.get(gpu.uuid)) | {
                "DCGM_FI_DEV_GPU_UTIL": usage.core_percent,
                "DCGM_FI_DEV_FB_USED": usage.memory_bytes / MIB,
                "DCGM_FI_DEV_FB_FREE": max(0, gpu.memory_bytes - usage.memory_bytes) / MIB,
                "DCGM_FI_DEV_GPU_TEMP": usage.temperature_celsius,
                "DCGM_FI_DEV_POWER_USAGE": usage.power_watts,
                "DCGM_FI_DEV_SM_CLOCK": usage.sm_clock_mhz,
                "DCGM_FI_DEV_MEM_CLOCK": usage.memory_clock_mhz,
                "DCGM_FI_DEV_XID_ERRORS": facts.xids.get(gpu.uuid, 0),
            }
            for name, value in values.items():
                if value is not None:
                    families[name].add_metric(labels, value)
    return families.values()


def _agent_metrics(facts: Facts) -> Iterable[Metric]:
    states = GaugeMetricFamily("gpucloud_agent_assignments", "Assignments on the node by state.", labels=["state"])
    numbers: dict[str, int] = defaultdict(int)
    for one in facts.observed.assignments:
        numbers[one.state] += 1
    for state, number in sorted(numbers.items()):
        states.add_metric([state], number)
    throttled = GaugeMetricFamily(
        "gpucloud_agent_throttled_ratio",
        "Part of the last second in which launches of the assignment waited for its share.",
        labels=["assignment"],
    )
    for usage in facts.usage.assignments if facts.usage else ():
        throttled.add_metric([usage.uid], usage.throttled_percent / 100)
    longest = GaugeMetricFamily(
        "gpucloud_agent_longest_kernel_seconds",
        "The assignment's longest kernel or graph of its last ten to twenty seconds with work.",
        labels=["assignment"],
    )
    for uid, seconds in facts.longest_kernels.items():
        longest.add_metric([uid], seconds)
    restarts = CounterMetricFamily("gpucloud_agent_arbiter_restarts", "How often the arbiter was started again.")
    restarts.add_metric([], facts.arbiter_restarts)
    plain = {
        "gpucloud_agent_connected": ("1 while the server has this agent.", facts.connected),
        "gpucloud_agent_frame": ("The newest desired state.", facts.wanted.frame if facts.wanted else 0),
        "gpucloud_agent_unacknowledged_frames": ("Samples the server has not stored yet.", facts.unacknowledged),
        "gpucloud_agent_arbiter_running": ("1 while the arbiter gives turns.", facts.arbiter_running),
        "gpucloud_agent_findings": ("GPU processes that no limit holds, or not all of it.", facts.findings),
    }
    gauges = (GaugeMetricFamily(name, words, value=float(value)) for name, (words, value) in plain.items())
    own = (states, throttled, longest, restarts, *gauges)
    return (*own, *_prepares(facts.prepares), *_remote(facts.remote), *_borrowed(facts))


def _borrowed(facts: Facts) -> Iterable[Metric]:
    gauges = {
        name: GaugeMetricFamily(f"gpucloud_agent_memory_{name}", BORROWED[name], labels=["assignment"])
        for name in ("borrowed_bytes", "out_bytes")
    }
    sums = {
        name: CounterMetricFamily(f"gpucloud_agent_memory_{name}", BORROWED[name], labels=["assignment"])
        for name in ("moved_bytes", "stood_seconds")
    }
    for usage in facts.usage.assignments if facts.usage else ():
        if usage.borrowed is not UNSET:
            gauges["borrowed_bytes"].add_metric([usage.uid], usage.borrowed.borrowed_bytes)
            gauges["out_bytes"].add_metric([usage.uid], usage.borrowed.out_bytes)
    for uid, (moved_bytes, stood_ns) in facts.counted.items():
        sums["moved_bytes"].add_metric([uid], moved_bytes)
        sums["stood_seconds"].add_metric([uid], stood_ns / 1e9)
    return *gauges.values(), *sums.values()


def _remote(counts: Mapping[str, Mapping[str, float]]) -> Iterable[Metric]:
    kinds: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        "channels": GaugeMetricFamily("gpucloud_agent_remote_channels", REMOTE["channels"], labels=["claim"]),
        "trip_seconds": GaugeMetricFamily(
            "gpucloud_agent_remote_trip_seconds", REMOTE["trip_seconds"], labels=["claim"]
        ),
    }
    for name in ("received_bytes", "sent_bytes", "turns"):
        kinds[name] = CounterMetricFamily(f"gpucloud_agent_remote_{name}", REMOTE[name], labels=["claim"])
    for claim, moved in counts.items():
        for name, family in kinds.items():
            if moved.get(name) is not None:
                family.add_metric([claim], moved[name])
    return kinds.values()


def _prepares(prepares: Prepares | None) -> Iterable[Metric]:
    seconds = HistogramMetricFamily(
        "gpucloud_agent_dra_prepare_seconds",
        "Time to prepare a ResourceClaim: the wait until its limits are in force, and the agent's own work.",
        labels=["part"],
    )
    refusals = CounterMetricFamily("gpucloud_agent_dra_refusals", "ResourceClaims that could not be prepared in time.")
    refusals.add_metric([], prepares.refusals if prepares is not None else 0)
    for part, durations in prepares.durations.items() if prepares is not None else ():
        names = [*map(str, PREPARE_BOUNDS), "+Inf"]
        seconds.add_metric([part], list(zip(names, accumulate(durations.counts), strict=True)), durations.sum_seconds)
    return seconds, refusals


def serve(facts: Callable[[], Facts], address: tuple[str, int] | None) -> None:
    """Serve the metrics from the running event loop's facts; without an address nothing is served."""
    if address is None:
        return
    host, port = address
    try:
        Exporter(facts, asyncio.get_running_loop()).listen(host, port)
    except OSError as error:
        # The node's limits matter more than its metrics.
        log.error("metrics-not-served", host=host, port=port, reason=str(error))  # noqa: TRY400
