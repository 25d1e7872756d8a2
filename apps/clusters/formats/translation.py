"""Translation of HAMi's and gpushare's requests into gpu-manager's resources, which our device plugin offers."""

from collections.abc import Mapping, Sequence

from apps.clusters.formats import gpu_manager, pods
from apps.clusters.formats.asks import LEAST_CORE, WHOLE, Ask, Unreadable


def translate(ask: Ask, *, gpu_memory_mib: int | None = None) -> dict[str, int]:
    """Return the resources of one container. Raises Unreadable if two resources cannot express the request.

    `gpu_memory_mib`: the memory of every GPU that it may be given; None: not known.
    """
    if ask.core_request == WHOLE and ask.memory_percent == WHOLE:
        return {gpu_manager.CORE: ask.gpu_count * WHOLE}
    if ask.gpu_count > 1:
        raise Unreadable(
            f"Container {ask.container} asks parts of {ask.gpu_count} GPUs: ask for part of one GPU, for whole GPUs, "
            f"or by a ResourceClaim with count {ask.gpu_count}."
        )
    if ask.memory_mib is None and gpu_memory_mib is None:
        raise Unreadable(
            f"Container {ask.container} asks {ask.memory_percent} percent of a GPU's memory, and which GPU it will be "
            "is not known yet: name the memory, or set ADMISSION_GPU_MEMORY_MIB if all GPUs have the same."
        )
    memory_mib = ask.memory_on(gpu_memory_mib or 0)
    # Percents are rounded down, so that those that make up a GPU fit there; what a program said it needs is rounded up.
    units = memory_mib // gpu_manager.UNIT_MIB if ask.memory_mib is None else -(-memory_mib // gpu_manager.UNIT_MIB)
    return {
        # 100 would mean whole GPUs, with more memory than requested.
        gpu_manager.CORE: min(max(ask.core_request, LEAST_CORE), WHOLE - 1),
        gpu_manager.MEMORY: max(units, 1),
    }


def ceiling(asks: Sequence[Ask]) -> int | None:
    """Return the pod's elastic ceiling; None if it equals the requests. Raises Unreadable."""
    parts = [ask for ask in asks if ask.core_request < WHOLE]
    if all(ask.core_limit == max(ask.core_request, LEAST_CORE) for ask in parts):
        return None
    limits = {ask.core_limit for ask in parts}
    if len(limits) > 1:
        raise Unreadable("Its containers limit compute in different ways: name cores for all of them, or for none.")
    return limits.pop()


def replace_resources(
    container: pods.Container, dropped: Sequence[str], amounts: Mapping[str, int]
) -> dict[str, object]:
    """Return the container's `resources` with these names dropped and these amounts set."""
    whole = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        kept = {name: value for name, value in pods.resources(container, kind).items() if name not in dropped}
        whole[kind] = kept | {name: str(value) for name, value in amounts.items()}
    return whole
