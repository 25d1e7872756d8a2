"""gpushare's and HAMi's paths at the extender's listener, and the webhooks there."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clusters.admission.asking import review
from tests.clusters.extenders import Listening
from tests.clusters.formats import pods as formats
from tests.clusters.paper import Paper, container, node, pod, request

# Two GPUs of 22 GiB each; a machine without any.
NODES = [node("a", 200, 176), node("bare", 0, 0)]
INDEX = "tencent.com/predicate-gpu-idx-0"


@pytest.fixture
def extender() -> Iterator[Listening]:
    part = pod("part", container(30, 8), on="a", annotations={INDEX: "0"})
    whole = pod("whole", container(100), on="a", annotations={INDEX: "1"})
    with Listening() as it:
        it.clusters["kube"] = Paper(NODES, [part, whole, pod("new", container(30, 8))]).extended()
        yield it


def call(extender: Listening, path: str, body: bytes) -> Any:
    said = httpx.post(f"{extender.url}{path}", content=body)
    assert said.status_code == 200, said.text
    return said.json()


@pytest.mark.parametrize("path", ["/gpushare-scheduler/filter", "/filter", "/clusters/kube/filter"])
def test_a_rewritten_pod_is_decided_as_everywhere(extender: Listening, path: str) -> None:
    said = call(extender, path, request(pod("new", container(30, 8)), names=["a", "bare"]))
    assert (said["NodeNames"], said["FailedNodes"]) == (["a"], {"bare": "no GPU device"})


@pytest.mark.parametrize(
    ("asked", "name"), [(formats.container_with(aliyun=2), "gpushare"), (formats.container_with(gpu=1), "HAMi")]
)
def test_a_pod_in_its_own_words_is_not_passed_on_without_a_gpu(extender: Listening, asked: Any, name: str) -> None:
    said = call(extender, "/filter", request(formats.pod(asked), names=["a"]))
    assert f"ADMISSION_TRANSLATE={name}" in said["Error"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"Pod": 7}', b'{"Pod": null, "NodeNames": []}'])
def test_what_is_no_request_is_answered_as_everywhere(extender: Listening, body: bytes) -> None:
    assert call(extender, "/filter", body) == call(extender, "/scheduler/predicates", body)


def test_inspect_tells_nodes_gpus_and_pods_in_gib(extender: Listening) -> None:
    whole = httpx.get(f"{extender.url}/gpushare-scheduler/inspect").json()
    assert whole == {
        "nodes": [
            {
                "name": "a",
                "totalGPU": 44,
                "usedGPU": 24,
                "devs": [
                    {
                        "id": 0,
                        "totalGPU": 22,
                        "usedGPU": 2,
                        "pods": [{"name": "part", "namespace": "ml", "usedGPU": 2}],
                    },
                    {
                        "id": 1,
                        "totalGPU": 22,
                        "usedGPU": 22,
                        "pods": [{"name": "whole", "namespace": "ml", "usedGPU": 22}],
                    },
                ],
            }
        ]
    }
    assert httpx.get(f"{extender.url}/clusters/kube/gpushare-scheduler/inspect/a").json() == whole


def test_inspect_of_nothing_says_so(extender: Listening) -> None:
    assert httpx.get(f"{extender.url}/gpushare-scheduler/inspect/b").json()["error"] == "node b not found"
    assert httpx.get(f"{extender.url}/clusters/other/gpushare-scheduler/inspect").status_code == 404


@pytest.mark.parametrize("path", ["/webhook", "/admission/mutate"])
def test_the_webhooks_are_at_the_same_listener(extender: Listening, path: str, settings: Any) -> None:
    settings.ADMISSION_TRANSLATE = ["HAMi"]
    said = call(extender, path, review(formats.pod(formats.container_with(gpu=1, gpumem=3000))))
    assert said["response"]["patchType"] == "JSONPatch"
    refused = call(extender, "/admission/validate", review(formats.pod(formats.container_with(core=150))))
    assert not refused["response"]["allowed"]
