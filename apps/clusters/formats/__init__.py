"""The formats in which pods ask for shares of GPUs: one module each, pure.

Every module has its resources' names, `asks` (what a pod asks), `holds` (what a running pod has, by its annotations)
and `written` (the words that say so); those that have a ResourceQuota, `quota` (what it allows).
"""

from collections.abc import Sequence
from typing import Protocol

from apps.clusters.formats import gpu_manager, gpushare, hami, kubeshare, pods
from apps.clusters.formats.asks import Ask, Share, Unreadable


class Format(Protocol):
    """What the formats have in common."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - a module's constant
    @property
    def RESOURCES(self) -> Sequence[str]: ...  # noqa: N802
    # Prefixes of annotations that say which GPUs a pod has: the webhooks keep them from tenants.
    @property
    def DECISIONS(self) -> Sequence[str]: ...  # noqa: N802

    def asks(self, pod: pods.Pod, /) -> tuple[Ask, ...]:
        """What it asks; nothing where it says nothing in this format. Raises Unreadable."""

    def holds(self, pod: pods.Pod, /) -> tuple[Share, ...]:
        """What it has, running. Raises Unreadable."""


FORMATS: tuple[Format, ...] = (gpu_manager, hami, gpushare, kubeshare)


def format_of(pod: pods.Pod) -> Format | None:
    """The format that the pod uses; None: it asks for no share of a GPU. Raises Unreadable where it mixes several.

    Resources count before KubeShare's words: a pod may keep those from which its resources were made.
    """
    used = [format_ for format_ in FORMATS if _named(pod, format_)]
    if len(used) > 1:
        names = " and ".join(format_.NAME for format_ in used)
        raise Unreadable(f"{pods.name_of(pod)} asks for GPUs in the words of {names}: use those of one.")
    if used:
        return used[0]
    return kubeshare if kubeshare.prefix_of(pod) is not None else None


def _named(pod: pods.Pod, format_: Format) -> bool:
    return any(pods.amount(container, resource) for container in pods.containers(pod) for resource in format_.RESOURCES)
