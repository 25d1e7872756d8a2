"""ResourceSlices: what is published of each GPU."""

from apps.clusters.dra import slices
from apps.clusters.dra.slices import GpuDevice

GPU = GpuDevice(
    uuid="GPU-11111111-2222-3333-4444-555555555555", index=0, model="NVIDIA H200", memory_mib=1000, core_left=100,
    memory_left_mib=1000, driver_version="610.43.02", pool="default", nvlink=0,
)  # fmt: skip


def device(**changes: object) -> dict[str, object]:
    values = {name: getattr(GPU, name) for name in GPU.__slots__}
    made = slices.slice_of("node-1", "uid-1", [GpuDevice(**(values | changes))])
    found: dict[str, object] = made["spec"]["devices"][0]
    return found


def test_a_gpu_is_a_device_that_many_may_have() -> None:
    found = device()
    assert found["name"] == "gpu-11111111-2222-3333-4444-555555555555"
    assert found["allowMultipleAllocations"] is True
    assert found["capacity"] == {
        "core": {
            "value": "100",
            "requestPolicy": {"default": "100", "validRange": {"min": "1", "max": "100", "step": "1"}},
        },
        "memory": {
            "value": "1000Mi",
            "requestPolicy": {"default": "1000Mi", "validRange": {"min": "1Mi", "max": "1000Mi", "step": "1Mi"}},
        },
    }
    assert "taints" not in found


def test_a_request_may_be_at_most_a_gpu_however_much_may_be_allocated() -> None:
    capacity = device(core_left=130, memory_left_mib=500)["capacity"]
    assert isinstance(capacity, dict)
    assert capacity["core"]["value"] == "130"
    assert capacity["core"]["requestPolicy"]["validRange"]["max"] == "100"
    assert capacity["memory"]["requestPolicy"]["default"] == "500Mi"


def test_a_full_gpu_has_no_range() -> None:
    """The API server wants at least one step above the least amount."""
    assert device(core_left=-5, memory_left_mib=1)["capacity"] == {
        "core": {"value": "0"}, "memory": {"value": "1Mi"}
    }  # fmt: skip


def test_taints_have_values_that_the_api_server_takes() -> None:
    found = device(taints=((slices.UNHEALTHY, "XID 79: it’s gone! " + "x" * 80),))["taints"]
    assert isinstance(found, list)
    [taint] = found
    assert (taint["key"], taint["effect"]) == (slices.UNHEALTHY, "NoSchedule")
    assert len(taint["value"]) <= 63
    assert taint["value"].startswith("XID-79--it-s-gone")


def test_gpus_that_nvlink_connects_have_one_number() -> None:
    links = {
        "GPU-a": {"GPU-b": "nvlink", "GPU-c": "system"}, "GPU-b": {"GPU-a": "nvlink"},
        "GPU-c": {"GPU-d": "nvlink", "GPU-gone": "nvlink"}, "GPU-d": {}, "GPU-e": {},
    }  # fmt: skip
    groups = slices.nvlink_groups(links)
    assert groups["GPU-a"] == groups["GPU-b"] != groups["GPU-c"] == groups["GPU-d"] != groups["GPU-e"]


def test_the_slice_ends_with_its_node_and_has_a_name_of_its_own() -> None:
    made = slices.slice_of("node-1", "uid-1", [])
    assert made["metadata"]["name"] == "node-1-gpucloud.io"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert len(slices.name_slice("n" * 253)) <= 253
