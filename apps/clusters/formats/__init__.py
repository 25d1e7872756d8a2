"""The formats in which pods ask for shares of GPUs: one pure module each.

Every module has the names of its resources, the words that it believes (`GUARDED`), `asks` (a pod's requests), `wishes`
(what the pod asks beside them), `holds` (a running pod's shares, from its annotations) and `annotations_for` (the
annotations of shares); modules of formats with a ResourceQuota also have `quota`.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from apps.clusters.formats import gpu_manager, gpushare, hami, kubeshare, pods
from apps.clusters.formats.asks import Ask, Share, Unreadable
from apps.clusters.formats.guarded import OWN, Guarded
from apps.clusters.formats.wishes import Wishes

__all__ = [
    "BY_NAME", "FORMATS", "NEVER_COUNTED", "OWN", "QUOTAS", "RESOURCES", "Ask", "Format", "Guarded", "Share",
    "Unreadable", "Wishes", "format_of", "gpu_manager", "gpushare", "hami", "kubeshare", "pods",
]  # fmt: skip


class Format(Protocol):
    """Interface of a format's module."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - a module's constant
    @property
    def RESOURCES(self) -> Sequence[str]: ...  # noqa: N802
    # The only list of words that decide which GPUs a pod has: the webhooks keep them from tenants.
    @property
    def GUARDED(self) -> Guarded: ...  # noqa: N802
    # Service accounts of kube-system whose words are believed: its schedulers and agents.
    @property
    def WRITERS(self) -> Sequence[str]: ...  # noqa: N802
    # Names of its own schedulers, which a rewritten pod must not wait for.
    @property
    def SCHEDULERS(self) -> Sequence[str]: ...  # noqa: N802
    # True: its running pods count once an import has taken them, not by what they say of themselves.
    @property
    def IMPORTED_ONLY(self) -> bool: ...  # noqa: N802

    @property
    def QUOTAS(self) -> Collection[str]: ...  # noqa: N802 - keys of a ResourceQuota that limit it

    def asks(self, pod: pods.Pod, /) -> tuple[Ask, ...]:
        """Return the pod's requests; empty if it does not use this format. Raises Unreadable."""

    def holds(self, pod: pods.Pod, /) -> tuple[Share, ...]:
        """Return the shares of a running pod. Raises Unreadable."""

    def wishes(self, pod: pods.Pod, /) -> Wishes:
        """Return what the pod asks beside its share. Raises Unreadable."""


FORMATS: tuple[Format, ...] = (gpu_manager, hami, gpushare, kubeshare)
BY_NAME = {format_.NAME: format_ for format_ in FORMATS}
RESOURCES = tuple(name for format_ in FORMATS for name in format_.RESOURCES)
QUOTAS = frozenset(key for format_ in FORMATS for key in format_.QUOTAS)
# Kubernetes accepts these keys of a ResourceQuota and counts none.
NEVER_COUNTED = ("limits.tencent.com/", "limits.aliyun.com/")


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
    return any(
        pods.amount(container, resource) for container in pods.lasting_containers(pod) for resource in format_.RESOURCES
    )
