"""Remembered refusals: room that was taken helps no refused request, and room that was freed helps few."""

from apps.scheduling.core.values import GpuState, Request


def could_help(gpu: GpuState, request: Request) -> bool:
    """Return True if the request, refused before, may fit now that this GPU has changed. Never False if it does fit.

    If more than the GPU itself decides (labels, the machine's CPU and RAM), any change may help.
    """
    if depends_on_others(request):
        return True
    return (
        gpu.schedulable
        and (not request.models or gpu.model in request.models)
        and gpu.core_free >= request.core_request
        and gpu.memory_free_mib >= request.memory_mib
    )


def depends_on_others(request: Request) -> bool:
    """Return True if other GPUs, or the machine, decide about the request, too."""
    return bool(request.labels or request.cpu_milli or request.ram_mib)
