"""What HAMi's and gpushare's pods ask, in the words of gpu-manager: the resources that our device plugin offers."""

from collections.abc import Mapping, Sequence

from apps.clusters.formats import gpu_manager, pods
from apps.clusters.formats.asks import LEAST_CORE, WHOLE, Ask, Unreadable


def translate(ask: Ask) -> dict[str, int]:
    """The amounts of one container. Raises Unreadable where two resources cannot say it."""
    if ask.core_request == WHOLE and ask.memory_percent == WHOLE:
        return {gpu_manager.CORE: ask.gpu_count * WHOLE}
    if ask.gpu_count > 1:
        raise Unreadable(
            f"Container {ask.container} asks parts of {ask.gpu_count} GPUs: ask a part of one GPU, or whole GPUs."
        )
    if ask.memory_mib is None:
        raise Unreadable(
            f"Container {ask.container} asks {ask.memory_percent} percent of a GPU's memory, and which GPU it will be "
            "is not known yet: ask MiB."
        )
    return {
        # At 100 it would be whole GPUs, with memory that was not asked for.
        gpu_manager.CORE: min(max(ask.core_request, LEAST_CORE), WHOLE - 1),
        gpu_manager.MEMORY: -(-ask.memory_mib // gpu_manager.UNIT_MIB),
    }


def ceiling(asks: Sequence[Ask]) -> int | None:
    """What its containers' elastic ceiling is, of which a pod has one; None: what they ask. Raises Unreadable."""
    limits = {ask.core_limit for ask in asks if ask.core_request < WHOLE}
    if len(limits) > 1:
        raise Unreadable("Its containers limit compute in different ways: name cores for all of them, or for none.")
    asked = {max(ask.core_request, LEAST_CORE) for ask in asks if ask.core_request < WHOLE}
    return None if limits == asked else next(iter(limits), None)


def replace_resources(
    container: pods.Container, dropped: Sequence[str], amounts: Mapping[str, int]
) -> dict[str, object]:
    """The container's `resources` with these names dropped and these amounts in their place."""
    whole = dict(container.get("resources") or {})
    for kind in ("limits", "requests"):
        kept = {name: value for name, value in pods.resources(container, kind).items() if name not in dropped}
        whole[kind] = kept | {name: str(value) for name, value in amounts.items()}
    return whole
