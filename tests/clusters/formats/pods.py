"""Pods in an API server's form."""

from typing import Any


def pod(*containers: dict[str, Any], name: str = "web-0", namespace: str = "acme", **meta: Any) -> dict[str, Any]:
    """Return a pod with these containers; further arguments go to its metadata."""
    named = [{"name": f"c{place}", **container} for place, container in enumerate(containers)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", **meta},
        "spec": {"containers": named},
    }


def container_with(**limits: Any) -> dict[str, Any]:
    """Return a container with these limits: `core=30` stands for tencent.com/vcuda-core, and so on."""
    names = {
        "core": "tencent.com/vcuda-core",
        "memory": "tencent.com/vcuda-memory",
        "gpu": "nvidia.com/gpu",
        "gpumem": "nvidia.com/gpumem",
        "percent": "nvidia.com/gpumem-percentage",
        "cores": "nvidia.com/gpucores",
        "aliyun": "aliyun.com/gpu-mem",
    }
    amounts = {names[word]: str(value) for word, value in limits.items()}
    return {"resources": {"limits": amounts, "requests": dict(amounts)}}
