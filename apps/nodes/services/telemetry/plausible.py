"""Bounds of measured values: one impossible value would distort every chart, sum and roll-up that contains it."""

import logging

import msgspec
from msgspec import UNSET

from agent import wire
from apps.nodes.services.telemetry.storing import Source

logger = logging.getLogger(__name__)

# Bounds of one GPU or its board; the largest take 1.4 kW, run at 3 GHz and shut down at some 110 °C.
MOST_WATTS = 10_000
MOST_CELSIUS = 200
MOST_MHZ = 20_000
# Between a GPU and its host: the fastest link of today has 0.45 TB/s each way.
MOST_BYTES_PER_SECOND = 10**13
# Linux's own limit of process ids.
MOST_PROCESSES = 4_194_304


def drop_implausible(source: Source, usage: wire.Usage) -> wire.Usage:
    """Return the frame without measurements that the node's hardware cannot produce; none is clipped.

    The rest of the frame is stored and acknowledged, so the agent does not send it again.
    """
    gpus = [gpu for gpu in usage.gpus if _of_gpu(gpu, source.memory_bytes.get(gpu.uuid))]
    largest = max(source.memory_bytes.values(), default=0)
    items = [item for item in usage.assignments if _of_assignment(item, largest)]
    refused = len(usage.gpus) - len(gpus) + len(usage.assignments) - len(items)
    if not refused:
        return usage
    if not source.warned:
        # Once per connection: the next frame repeats it.
        source.warned = True
        logger.warning("node %s sent implausible measurements: %d values are not stored", source.node_name, refused)
    return msgspec.structs.replace(usage, gpus=gpus, assignments=items)


def _of_gpu(gpu: wire.GpuUsage, memory_bytes: int | None) -> bool:
    # Other nodes' GPUs are dropped when frames are packed.
    return (
        (memory_bytes is None or gpu.memory_bytes <= memory_bytes)
        and (gpu.power_watts is None or gpu.power_watts <= MOST_WATTS)
        and (gpu.temperature_celsius is None or -MOST_CELSIUS <= gpu.temperature_celsius <= MOST_CELSIUS)
        and (gpu.sm_clock_mhz is None or gpu.sm_clock_mhz <= MOST_MHZ)
        and (gpu.memory_clock_mhz is None or gpu.memory_clock_mhz <= MOST_MHZ)
    )


def _of_assignment(item: wire.AssignmentUsage, largest_bytes: int) -> bool:
    return (
        item.memory_bytes <= largest_bytes
        and item.memory_limit_bytes <= largest_bytes
        and item.processes <= MOST_PROCESSES
        and (item.borrowed is UNSET or _of_borrowed(item.borrowed, largest_bytes))
    )


def _of_borrowed(borrowed: wire.BorrowedMemory, largest_bytes: int) -> bool:
    return (
        borrowed.borrowed_bytes <= largest_bytes
        and borrowed.out_bytes <= largest_bytes
        and borrowed.moved_bytes_per_second <= MOST_BYTES_PER_SECOND
    )
