"""ResourceClaims, templates and pods that use them, as people write them."""

from typing import Any

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core.devices import DEVICE_CLASS

Json = dict[str, Any]
# A share of a device, as kube-scheduler numbers them.
SHARE = "a671734a-e8e5-11e4-8fde-42010af09327"
API = "/apis/resource.k8s.io/v1"


def spec(*, core: int | None = 30, memory: str | None = "2Gi", count: int | None = None, **exactly: Any) -> Json:
    """Return the spec of a ResourceClaim for shares of this size."""
    amounts = {"core": None if core is None else str(core), "memory": memory}
    asked: Json = {"deviceClassName": DEVICE_CLASS, **exactly}
    if count is not None:
        asked["count"] = count
    asked["capacity"] = {"requests": {name: amount for name, amount in amounts.items() if amount is not None}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}


def claim(name: str, namespace: str, **asked: Any) -> Json:
    """Return a ResourceClaim."""
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec(**asked),
    }  # fmt: skip


def pod(name: str, namespace: str, *, claim: str | None = None, template: str | None = None) -> Json:
    """Return a pod that uses a ResourceClaim, its own or one made from a template."""
    source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
    container = {"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "resourceClaims": [{"name": "gpu", **source}]},
    }


def result(gpu: str, node: str, *, core: int, memory_mib: int, share: str = SHARE) -> Json:
    """Return one allocated device as kube-scheduler writes it."""
    return {
        "request": "gpu", "driver": DRIVER, "pool": node, "device": gpu.lower(), "shareID": share,
        "consumedCapacity": {"core": str(core), "memory": f"{memory_mib}Mi"},
    }  # fmt: skip
