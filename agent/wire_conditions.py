"""The types of conditions that frames carry."""

from enum import StrEnum


class ConditionType(StrEnum):
    """The types of conditions of a node or a GPU. All are good when `True`; a newer agent may know more of them."""

    # Of a node.
    DRIVER_HEALTHY = "DriverHealthy"
    ARBITER_RUNNING = "ArbiterRunning"
    CLOCK_IN_SYNC = "ClockInSync"
    DISK_SPACE = "DiskSpace"
    LIBRARY_PRESENT = "LibraryPresent"
    PROCESSES_LIMITED = "ProcessesLimited"
    KERNEL_LIMITS_SET = "KernelLimitsSet"
    MPS_SERVING = "MpsServing"
    # Of a GPU.
    REACHABLE = "Reachable"
    NO_XID_ERRORS = "NoXidErrors"
    MEMORY_HEALTHY = "MemoryHealthy"
    TEMPERATURE_OK = "TemperatureOk"
