"""Requests for MIG instances in the words of NVIDIA's device plugin. No format of shares: nothing rewrites them.

With the plugin's strategy `mixed`, a profile is a resource: `nvidia.com/mig-1g.10gb`, and `nvidia.com/mig-1g.10gb.me`
for the profile `1g.10gb+me` (github.com/NVIDIA/k8s-device-plugin, internal/resource). With `single`, `nvidia.com/gpu`
is an instance, and only labels of the node say so: `nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`,
`nvidia.com/mig.strategy: single`, and the configuration of NVIDIA's MIG manager, `nvidia.com/mig.config: all-1g.5gb`.

Kubernetes makes a resource of each DeviceClass, so that a pod can ask for ours by their names, too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from apps.clusters.core.devices import CLASS_RESOURCES, profile_of_class
from apps.clusters.formats import pods

PREFIX = "nvidia.com/mig-"
# What a pod asks that asks for one of our DeviceClasses by its name.
OWN_PREFIX = f"{CLASS_RESOURCES}mig-"
PRODUCT, STRATEGY, CONFIG = "nvidia.com/gpu.product", "nvidia.com/mig.strategy", "nvidia.com/mig.config"
_VARIANT = r"(\d{1,2}g\.\d{1,5}gb(?:[.+][a-z.]+)?)"
# Values of labels of nodes on which `nvidia.com/gpu` is an instance, and the profile that they name.
_INSTANCES = {
    PRODUCT: re.compile(rf".*-MIG-{_VARIANT}.*"),
    CONFIG: re.compile(rf"all-{_VARIANT}"),
    STRATEGY: re.compile(r"single()"),
}
_PROFILE = re.compile(r"\d{1,2}g\.\d{1,5}gb")


class MigRequest(NamedTuple):
    """A container's request for instances of one profile."""

    container: str
    resource: str
    # As the resource names it: `1g.10gb`, or `1g.10gb.me` for a variant.
    profile: str
    amount: int
    # The container ends before the others start.
    is_init: bool
    # It names one of our DeviceClasses.
    is_ours: bool = False

    @property
    def is_plain(self) -> bool:
        """False for a variant of a profile, and for what is no profile."""
        return bool(_PROFILE.fullmatch(self.profile))

    @property
    def is_shared(self) -> bool:
        """True if the plugin gives one instance to several pods: its setting `renameByDefault`."""
        return self.profile.endswith(".shared")

    @property
    def is_part(self) -> bool:
        """True for a compute instance smaller than its GPU instance: `1c.2g.10gb`."""
        return bool(re.match(r"\d{1,2}c\.", self.profile))

    @property
    def plain_resource(self) -> str | None:
        """The resource of the profile of which this is a variant; None if it names none."""
        found = _PROFILE.search(self.profile)
        return f"{PREFIX}{found[0]}" if found else None


def requests_of(pod: pods.Pod) -> list[MigRequest]:
    """Return the requests of all containers, those for nothing left out. Raises Unreadable."""
    found = []
    for container in (*pods.containers(pod), *pods.init_containers(pod)):
        is_init = container in pods.init_containers(pod) and not pods.is_sidecar(container)
        names = {name for kind in ("limits", "requests") for name in pods.resources(container, kind)}
        for name in sorted(names):
            own = profile_of_class(name.removeprefix(CLASS_RESOURCES)) if name.startswith(OWN_PREFIX) else None
            if (own or name.startswith(PREFIX)) and (count := pods.amount(container, name)):
                profile = own or name.removeprefix(PREFIX)
                found.append(MigRequest(str(container.get("name")), name, profile, count, is_init, own is not None))
    return found


def single_strategy(pod: pods.Pod) -> tuple[str, str] | None:
    """Return the label by which it asks for nodes on which `nvidia.com/gpu` is a MIG instance, and of which profile.

    The profile is empty where the label names none.
    """
    for label, value in _wanted_labels(pod.get("spec") or {}):
        if label in _INSTANCES and (found := _INSTANCES[label].fullmatch(value)):
            return label, found[1]
    return None


def _wanted_labels(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels that the pod's node selector and required node affinity name."""
    yield from ((str(key), str(value)) for key, value in (spec.get("nodeSelector") or {}).items())
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for one in term.get("matchExpressions") or []:
            if one.get("operator") == "In":
                yield from ((str(one.get("key")), str(value)) for value in one.get("values") or [])
