"""Requests and allocations of ResourceClaims, as they are read."""

from typing import Any

import pytest

from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import requests
from apps.clusters.dra.requests import Device, DeviceRequest
from apps.clusters.formats.asks import Unreadable
from tests.clusters.dra import things


def test_a_request_is_percent_and_mib_of_each_gpu() -> None:
    assert requests.read_request(things.claim("a", "n")) == DeviceRequest("gpu", 1, 30, 2048)
    asked = requests.read_request(things.claim("a", "n", core=None, memory="1500M", count=4))
    # Rounded up, as kube-scheduler rounds to the step of a mebibyte.
    assert asked == DeviceRequest("gpu", 4, 100, 1431)


def test_a_template_asks_as_its_resource_claims_do() -> None:
    template = {"kind": "ResourceClaimTemplate", "spec": {"spec": things.spec()}}
    assert requests.asks(template)
    assert requests.read_request(template).core == 30


def test_devices_of_others_are_none_of_ours() -> None:
    theirs = things.claim("a", "n", deviceClassName="gpu.example.com")
    assert not requests.asks(theirs)
    allocated = {"status": {"allocation": {"devices": {"results": [{"driver": "gpu.example.com", "device": "x"}]}}}}
    assert requests.read_allocation(allocated) == ()


def with_request(**request: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": [{"name": "gpu", **request}]}}}


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (things.claim("a", "n", core=0), "from 1 to 100"),
        (things.claim("a", "n", core=101), "from 1 to 100"),
        (things.claim("a", "n", memory=None), "say how much memory"),
        (things.claim("a", "n", memory="0"), "at least 1Mi"),
        (things.claim("a", "n", memory="much"), "is not a quantity"),
        (things.claim("a", "n", memory="9Ei"), "at least 1Mi"),
        (things.claim("a", "n", count=99), "from 1 to 32"),
        (things.claim("a", "n", allocationMode="All"), "ExactCount"),
        (things.claim("a", "n", adminAccess=True), "no adminAccess"),
        (with_request(firstAvailable=[{"deviceClassName": DEVICE_CLASS}]), "use exactly"),
    ],
)
def test_what_cannot_be_charged_is_refused_in_words(thing: dict[str, Any], words: str) -> None:
    assert requests.asks(thing)
    with pytest.raises(Unreadable, match=words):
        requests.read_request(thing)


def test_one_resource_claim_has_one_size() -> None:
    thing = things.claim("a", "n")
    first = thing["spec"]["devices"]["requests"][0]
    thing["spec"]["devices"]["requests"].append({**first, "name": "second"})
    with pytest.raises(Unreadable, match="this one has 2"):
        requests.read_request(thing)
    capacity = things.claim("a", "n")
    capacity["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["bandwidth"] = "1"
    with pytest.raises(Unreadable, match="no capacity bandwidth"):
        requests.read_request(capacity)


def test_an_allocation_is_what_was_consumed() -> None:
    result = things.result("GPU-AB", "node-1", core=30, memory_mib=2048)
    thing = {"status": {"allocation": {"devices": {"results": [result]}}}}
    [device] = requests.read_allocation(thing)
    assert device == Device("node-1", "gpu-ab", "gpu", things.SHARE, 30, 2048)
    del result["consumedCapacity"]
    with pytest.raises(Unreadable, match="DRAConsumableCapacity"):
        requests.read_allocation(thing)


def test_annotations_resize_and_nonsense_is_refused() -> None:
    words = {requests.CORE_KEY: "60", requests.CORE_LIMIT_KEY: "80", requests.MEMORY_KEY: "4Gi", "other": "1"}
    thing = {"metadata": {"annotations": words}}
    assert requests.read_resize(requests.resize_words(thing)) == {
        "core_request": 60, "core_limit": 80, "memory_mib": 4096
    }  # fmt: skip
    for key, word in ((requests.CORE_KEY, "0"), (requests.MEMORY_KEY, "-1"), (requests.CORE_KEY, "½")):
        with pytest.raises(Unreadable):
            requests.read_resize({key: word})
