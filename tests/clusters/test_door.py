"""The extender's listener: admission of callers, answers to malformed requests, and its other verbs."""

import json
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import httpx
import pytest

from apps.clusters.extender.cluster import Extended
from apps.clusters.kube.mirror import Mirror
from tests.clusters.extenders import Listening
from tests.clusters.paper import Paper, container, node, pod, request

NODES = [node("a", 200, 118), node("b", 200, 118), node("c", 0, 0)]


@pytest.fixture
def extender() -> Iterator[Listening]:
    with Listening(networks=[ip_network("127.0.0.0/8")]) as it:
        it.clusters["kube"] = Paper(NODES, [pod("p", container(100, 1)), pod("big", container(200), on="a")]).extended()
        yield it


def call(extender: Listening, path: str, body: bytes) -> httpx.Response:
    return httpx.post(f"{extender.url}{path}", content=body)


def test_the_first_cluster_needs_no_name_also_after_another_was_connected(extender: Listening) -> None:
    body = request(pod("p", container(100, 1)), NODES)
    said = call(extender, "/scheduler/predicates", body)
    assert said.headers["content-type"] == "application/json"
    assert call(extender, "/clusters/kube/scheduler/predicates", body).json()["Error"] == ""
    extender.clusters["other"] = Paper([node("there", 200, 118)], [pod("p", container(100, 1))]).extended()
    assert call(extender, "/scheduler/predicates", body).json()["Nodes"]["items"][0]["metadata"]["name"] == "a"
    assert call(extender, "/clusters/third/scheduler/predicates", body).status_code == 404


def test_without_the_first_cluster_its_requests_go_to_no_other(extender: Listening) -> None:
    """Its kube-scheduler would be given GPUs of the other one."""
    extender.clusters["other"] = extender.clusters.pop("kube")
    extender.first = "kube"
    body = request(pod("p", container(100, 1)), NODES)
    assert call(extender, "/scheduler/predicates", body).status_code == 404
    assert call(extender, "/clusters/other/scheduler/predicates", body).status_code == 200


def test_only_those_networks_are_answered_that_are_named() -> None:
    with Listening(networks=[ip_network("10.0.0.0/8")]) as it:
        assert httpx.get(f"{it.url}/version").status_code == 403
        # The kubelet asks from addresses of its own, and learns nothing else.
        assert httpx.get(f"{it.url}/livez").text == "ok\n"
        assert call(it, "/scheduler/predicates", b"{}").status_code == 403


def test_what_is_no_request_is_refused(extender: Listening) -> None:
    assert call(extender, "/scheduler/predicates", b"").status_code == 400
    assert httpx.get(f"{extender.url}/scheduler/predicates").status_code == 405
    assert call(extender, "/scheduler/other", b"{}").status_code == 404
    assert call(extender, "/scheduler/predicates", b"{").status_code == 200
    assert call(extender, "/scheduler/prioritize", b"{").status_code == 400


def test_without_knowing_what_runs_nothing_is_answered(extender: Listening) -> None:
    known = extender.clusters["kube"]
    extender.clusters["kube"] = Extended("kube", known.client, Mirror())
    assert call(extender, "/scheduler/predicates", b"{}").status_code == 503
    assert httpx.get(f"{extender.url}/healthz").status_code == 503
    assert httpx.get(f"{extender.url}/version").text == "test"


def test_ten_megabytes_of_nodes_are_read(extender: Listening) -> None:
    many = [node(f"n{number}", 100, 59, annotations={"x": "y" * 10_000}) for number in range(1000)]
    said = call(extender, "/scheduler/predicates", request(pod("p", container(100, 1)), many)).json()
    assert [item["metadata"]["name"] for item in said["Nodes"]["items"]] == ["n0"]
    assert len(said["FailedNodes"]) == 999


def scores(extender: Listening, asked: dict[str, Any]) -> dict[str, int]:
    said = call(extender, "/scheduler/prioritize", request(asked, NODES)).json()
    assert all(set(item) == {"Host", "Score"} for item in said)
    return {item["Host"]: item["Score"] for item in said}


def test_the_node_of_the_chosen_gpus_has_the_highest_score(extender: Listening) -> None:
    chosen = pod("p", container(100, 1), annotations={"tencent.com/predicate-node": "b"})
    assert scores(extender, chosen) == {"a": 0, "b": 10, "c": 0}
    assert scores(extender, pod("q", container())) == {"a": 0, "b": 0, "c": 10}


def victims(extender: Listening, uids: list[str]) -> dict[str, Any]:
    body = {
        "Pod": pod("q", container(200)),
        "NodeNameToMetaVictims": {"b": {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1}},
    }
    said: dict[str, dict[str, Any]] = call(extender, "/scheduler/preempt", json.dumps(body).encode()).json()
    return said["NodeNameToMetaVictims"]


def test_preemption_keeps_the_nodes_where_gpus_would_be_free() -> None:
    held = {"tencent.com/predicate-gpu-idx-0": "1"}
    with Listening(networks=[ip_network("127.0.0.0/8")]) as it:
        it.clusters["kube"] = Paper(NODES, [pod("x", container(50, 1), annotations=held, on="b")]).extended()
        assert victims(it, ["uid-x"]) == {"b": {"Pods": [{"UID": "uid-x"}], "NumPDBViolations": 1}}
        assert victims(it, ["uid-y"]) == {}
