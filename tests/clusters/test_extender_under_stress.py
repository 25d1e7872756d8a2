"""The extender under faults: of its callers, a cluster's credentials, the API server or its watch."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from apps.clusters.admission.policy import Policy
from apps.clusters.extender import predicates
from apps.clusters.kube.client import Refused
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.objects import ListMetadata, Page, Pod
from apps.clusters.kube.reflector import PODS, Observation, Reflector
from apps.clusters.management.commands.extender import Extenders
from apps.clusters.services import clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.admission.asking import mutate
from tests.clusters.extenders import Listening
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.paper import Paper, container, node, pod, request

Json = dict[str, Any]
CHOSEN = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-node": "a"}


def seen(version: int, annotations: Json | None = None) -> Pod:
    item = pod("p", container(100), annotations=annotations)
    item["metadata"]["resourceVersion"] = str(version)
    return msgspec.convert(item, Pod)


def test_what_was_written_after_a_list_was_read_is_not_forgotten() -> None:
    mirror = Mirror()
    mirror.take(seen(12, CHOSEN))
    mirror.see(Observation("pods", (seen(9),), whole=True, version=11))
    assert mirror.view("a", 400, 384).core_free == [0, 100, 100, 100]
    mirror.see(Observation("pods", (), whole=True, version=13))
    assert mirror.view("a", 400, 384).core_free == [100] * 4


def test_what_the_watch_has_told_is_the_lists_again() -> None:
    mirror = Mirror()
    mirror.take(seen(12, CHOSEN))
    mirror.see(Observation("pods", (seen(12, CHOSEN),)))
    mirror.see(Observation("pods", (), whole=True, version=11))
    assert mirror.view("a", 400, 384).core_free == [100] * 4


def test_a_watch_whose_news_are_not_understood_lists_anew() -> None:
    class Kube:
        def pages(self, path: str, **query: str) -> Iterator[Page]:
            yield Page(ListMetadata("7"))

        def watch(self, path: str, version: str, *, seconds: int, **query: str) -> Any:
            reflector.stop()
            yield from ()

    heard: list[int] = []

    def see(news: Observation) -> None:
        heard.append(news.version)
        if len(heard) == 1:
            raise LookupError("odd")

    troubles: list[str] = []
    client: Any = Kube()
    reflector = Reflector(client, PODS, see=see, fail=lambda kind, text: troubles.append(text))
    reflector.run()
    assert (heard, troubles) == ([7, 7], ["odd"])


def test_a_cluster_whose_credentials_cannot_be_used_holds_up_no_other(cast: Cast) -> None:
    clusters.connect(principal=SYSTEM, name="a-odd", pool=cast.pool, in_cluster=True)
    clusters.connect(principal=SYSTEM, name="b-good", pool=cast.pool, kubeconfig=kubeconfig())
    extenders = Extenders()
    extenders.refresh()
    try:
        assert set(extenders) == {"b-good"}
    finally:
        for watch in extenders._watches["b-good"]:
            watch.stop()


def test_a_pod_that_cannot_be_written_to_is_not_tried_on_every_node() -> None:
    nodes = [node(f"n{number}", 400, 384) for number in range(10)]
    paper = Paper(nodes, [pod("p", container(30, 10))])
    paper.refusals = [Refused(404, "NotFound", "no")] * 10
    said = json.loads(predicates.answer(paper.extended(), request(paper.pods["p"], nodes)))
    assert set(said["FailedNodes"].values()) == {"update pod annotation failed"}
    assert (len(said["FailedNodes"]), len(paper.refusals)) == (10, 7)


def test_a_bound_pod_is_not_given_other_gpus() -> None:
    """The caller is not kube-scheduler."""
    nodes = [node("a", 400, 384), node("b", 400, 384)]
    paper = Paper(nodes, [pod("p", container(100), annotations=dict(CHOSEN), on="a")])
    asked = pod("p", container(30, 10))
    asked["metadata"]["uid"] = ""
    said = json.loads(predicates.answer(paper.extended(), request(asked, nodes)))
    assert said["Error"] == "pod p is bound to a already"
    assert paper.pods["p"]["metadata"]["annotations"] == CHOSEN


@pytest.mark.parametrize("amount", ["much", "9" * 5000])
def test_odd_amounts_are_refused(amount: str) -> None:
    body = json.dumps({"Pod": pod("p", container(amount, 10)), "NodeNames": ["a"]})
    with Listening() as it:
        it.clusters["kube"] = Paper([node("a", 400, 384)]).extended()
        said = {verb: httpx.post(f"{it.url}/scheduler/{verb}", content=body) for verb in ("prioritize", "preempt")}
        assert {verb: answer.status_code for verb, answer in said.items()} == {"prioritize": 400, "preempt": 400}
        filtered = httpx.post(f"{it.url}/scheduler/predicates", content=body)
        assert "no quantity" in filtered.json()["Error"]


def test_names_of_a_request_lead_nowhere_else() -> None:
    assert predicates.path_of("a/b?", "../c") == "/api/v1/namespaces/a%2Fb%3F/pods/..%2Fc"


def test_a_pod_without_containers_is_left_to_the_api_server() -> None:
    thing = {"kind": "Pod", "metadata": {"labels": {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "0.5",
             "sharedgpu/gpu_mem": "1048576"}}, "spec": {"containers": []}}  # fmt: skip
    assert mutate(thing, Policy(translated=frozenset({"KubeShare"}))) == thing
