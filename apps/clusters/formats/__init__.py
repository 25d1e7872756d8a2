"""The formats in which pods ask for shares of GPUs: one pure module each.

Every module has the names of its resources, `asks` (a pod's requests), `holds` (a running pod's shares, from its
annotations) and `annotations_for` (the annotations of shares); modules of formats with a ResourceQuota also have
`quota`.
"""

from collections.abc import Sequence
from typing import Protocol

from apps.clusters.formats import gpu_manager, gpushare, hami, kubeshare, pods
from apps.clusters.formats.asks import Ask, Share, Unreadable


class Format(Protocol):
    """Interface of a format's module."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - a module's constant
    @property
    def RESOURCES(self) -> Sequence[str]: ...  # noqa: N802
    # Prefixes of annotations that say which GPUs a pod has: the webhooks keep them from tenants.
    @property
    def DECISIONS(self) -> Sequence[str]: ...  # noqa: N802

    def asks(self, pod: pods.Pod, /) -> tuple[Ask, ...]:
        """Return the pod's requests; empty if it does not use this format. Raises Unreadable."""

    def holds(self, pod: pods.Pod, /) -> tuple[Share, ...]:
        """Return the shares of a running pod. Raises Unreadable."""


FORMATS: tuple[Format, ...] = (gpu_manager, hami, gpushare, kubeshare)


def format_of(pod: pods.Pod) -> Format | None:
    """Return the pod's format; None if it asks for no share of a GPU. Raises Unreadable if it mixes formats.

    Resources take precedence over KubeShare's labels: a translated pod may keep the labels of its resources.
    """
    used = [format_ for format_ in FORMATS if _named(pod, format_)]
    if len(used) > 1:
        names = " and ".join(format_.NAME for format_ in used)
        raise Unreadable(f"{pods.name_of(pod)} asks for GPUs in the formats of {names}: use one of them.")
    if used:
        return used[0]
    return kubeshare if kubeshare.prefix_of(pod) is not None else None


def _named(pod: pods.Pod, format_: Format) -> bool:
    return any(pods.amount(container, resource) for container in pods.containers(pod) for resource in format_.RESOURCES)
