"""Pods as an API server would write them."""

from typing import Any


def pod(*containers: dict[str, Any], name: str = "web-0", namespace: str = "acme", **meta: Any) -> dict[str, Any]:
    """A pod with these containers; further words go to its metadata."""
    named = [{"name": f"c{place}", **container} for place, container in enumerate(containers)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", **meta},
        "spec": {"containers": named},
    }


def asking(**limits: Any) -> dict[str, Any]:
    """A container with these limits: `core=30` stands for tencent.com/vcuda-core, and so on."""
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
