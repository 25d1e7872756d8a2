"""Models of this app, a module per noun."""

from apps.nodes.models.condition import Condition
from apps.nodes.models.gpu import Gpu
from apps.nodes.models.health import GpuHealth
from apps.nodes.models.node import Node
from apps.nodes.models.rolled import (
    FleetMinute,
    LateFrames,
    TelemetryMark,
    UsageDay,
    UsageHour,
    UsageMinute,
    UsageTens,
)
from apps.nodes.models.sample import Sample, UsageFrame

__all__ = [
    "Condition",
    "FleetMinute",
    "Gpu",
    "GpuHealth",
    "LateFrames",
    "Node",
    "Sample",
    "TelemetryMark",
    "UsageDay",
    "UsageFrame",
    "UsageHour",
    "UsageMinute",
    "UsageTens",
]
