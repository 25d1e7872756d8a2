"""Requests for MIG instances in the words of NVIDIA's device plugin. No format of shares: nothing rewrites them.

With the plugin's strategy `mixed`, a profile is a resource: `nvidia.com/mig-1g.10gb`, and `nvidia.com/mig-1g.10gb.me`
for the profile `1g.10gb+me` (github.com/NVIDIA/k8s-device-plugin, internal/resource). With `single`, `nvidia.com/gpu`
is an instance, and only the label `nvidia.com/gpu.product` of the node says so: `NVIDIA-A100-SXM4-40GB-MIG-1g.5gb`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from apps.clusters.formats import pods

PREFIX = "nvidia.com/mig-"
PRODUCT = "nvidia.com/gpu.product"
_INSTANCE = re.compile(r"-MIG-(\d{1,2}g\.\d{1,5}gb(?:[.+][a-z.]+)?)")
_PROFILE = re.compile(r"^\d{1,2}g\.\d{1,5}gb$")


class MigRequest(NamedTuple):
    """A container's request for instances of one profile."""

    container: str
    resource: str
    # As the resource names it: `1g.10gb`, or `1g.10gb.me` for a variant.
    profile: str
    amount: int
    # The container ends before the others start.
    is_init: bool

    @property
    def is_plain(self) -> bool:
        """False for a variant with media engines, and for what is no profile."""
        return bool(_PROFILE.match(self.profile))


def requests_of(pod: pods.Pod) -> list[MigRequest]:
    """Return the requests of all containers, those for nothing left out. Raises Unreadable."""
    found = []
    for container in (*pods.containers(pod), *pods.init_containers(pod)):
        is_init = container in pods.init_containers(pod) and not pods.is_sidecar(container)
        names = {name for kind in ("limits", "requests") for name in pods.resources(container, kind)}
        for name in sorted(name for name in names if name.startswith(PREFIX)):
            if count := pods.amount(container, name):
                profile = name.removeprefix(PREFIX)
                found.append(MigRequest(str(container.get("name")), name, profile, count, is_init))
    return found


def single_strategy_profile(pod: pods.Pod) -> str | None:
    """Return the profile of the nodes that it asks for, on which `nvidia.com/gpu` is a MIG instance, if any."""
    for value in _wanted_products(pod.get("spec") or {}):
        if found := _INSTANCE.search(value):
            return found[1]
    return None


def _wanted_products(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the products that the pod's node selector and required node affinity name."""
    yield str((spec.get("nodeSelector") or {}).get(PRODUCT) or "")
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for one in term.get("matchExpressions") or []:
            if one.get("key") == PRODUCT and one.get("operator") == "In":
                yield from map(str, one.get("values") or [])
