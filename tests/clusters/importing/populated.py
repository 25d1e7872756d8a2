"""A cluster in which the pods of all four incumbents run, as its API server lists them."""

from typing import Any

from apps.clusters.importing.plan import Snapshot
from tests.clusters.formats.pods import container_with, pod

UUID = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def running(pod: dict[str, Any], *, node: str = "gpu1", phase: str = "Running") -> dict[str, Any]:
    """Return the pod, bound and in this phase."""
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": phase}
    return pod


def quota(namespace: str, name: str = "gpu", **hard: str) -> dict[str, Any]:
    """Return a ResourceQuota; `requests.tencent.com/vcuda-core` and so on as keywords."""
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"hard": hard}}


def gpu_manager_pod(name: str = "tc-0", index: str = "0", **said: Any) -> dict[str, Any]:
    asked = pod({}, container_with(core=30, memory=8), name=name, namespace="red")
    asked["metadata"]["annotations"] = {"tencent.com/predicate-gpu-idx-1": index}
    return running(asked, **said)


def hami_pod(name: str = "hami-0", uuid: str = UUID) -> dict[str, Any]:
    said = {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,3000,20:;", "hami.io/vgpu-node": "gpu1"}
    return running(pod(container_with(gpu=1, gpumem=3000, cores=20), name=name, namespace="green", annotations=said))


def gpushare_pod(name: str = "share-0", index: str = "1") -> dict[str, Any]:
    said = {"ALIYUN_COM_GPU_MEM_IDX": index, "ALIYUN_COM_GPU_MEM_POD": "2", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    return running(pod({}, container_with(aliyun=2), name=name, namespace="blue", annotations=said))


def kubeshare_pod(name: str = "shp-0") -> dict[str, Any]:
    words = {"gpu_request": "0.25", "gpu_limit": "0.5", "gpu_mem": str(1 << 30), "sched_affinity": "near"}
    said = {f"kubeshare/{word}": value for word, value in words.items()}
    return running(pod({}, name=name, namespace="blue", annotations=said))


def sharepod(name: str = "shp-0", uuid: str = UUID) -> dict[str, Any]:
    return {"metadata": {"namespace": "blue", "name": name}, "status": {"BoundDeviceID": uuid}}


def populate() -> Snapshot:
    """Return all objects."""
    return Snapshot(
        pods=[gpu_manager_pod(), hami_pod(), gpushare_pod(), kubeshare_pod()],
        resource_quotas=[
            quota("red", **{"requests.tencent.com/vcuda-core": "100", "requests.tencent.com/vcuda-memory": "59"}),
            quota("green", **{"limits.nvidia.com/gpumem": "20000"}),
        ],
        quota_map={"gpu_quota": '{"red": {"quota": {"A10": 4}}}'},
        sharepods=[sharepod()],
    )
