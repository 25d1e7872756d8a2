"""Complete requests and answers of the extender's four verbs: keys come in any case, and leave in Go's."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from apps.clusters.extender import others, predicates, preempting
from apps.clusters.extender.bodies import NotUnderstood
from apps.clusters.extender.cluster import Extended
from tests.clusters.keys import change_keys, mix_case
from tests.clusters.paper import Paper, container, node, pod, request

Json = dict[str, Any]
Change = Callable[[str], str]
NODES = [node("Big-A", 100, 59), node("b", 200, 118), node("c", 0, 0)]
HELD = {"tencent.com/predicate-gpu-idx-0": "0"}


def as_go_writes(key: str) -> str:
    return key


in_any_case = pytest.mark.parametrize("change", [as_go_writes, str.lower, str.upper, str.swapcase, mix_case])


class Bound(Paper):
    """A client whose API server records bindings."""

    def get(self, path: str) -> Json:
        return self.pods[path.rpartition("/")[2]]

    def post(self, path: str, body: Json) -> bytes:
        self.posted = path, body
        return b"{}"


def ask(verb: Callable[[Extended, bytes], bytes], paper: Paper, body: bytes, change: Change) -> Any:
    """Return the complete answer."""
    return json.loads(verb(paper.extended(), json.dumps(change_keys(json.loads(body), change)).encode()))


@in_any_case
def test_the_filter_by_name(change: Change) -> None:
    paper = Paper(NODES, [pod("p", container(100, 10))])
    assert ask(predicates.answer, paper, request(paper.pods["p"], names=["Big-A", "b", "c"]), change) == {
        "Nodes": None,
        "NodeNames": ["Big-A"],
        "FailedNodes": {"b": "pod uid-p has already been matched to another node", "c": "no GPU device"},
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    written = paper.pods["p"]["metadata"]["annotations"]
    assert int(written.pop("tencent.com/predicate-time")) > 10**18
    assert written == {
        "tencent.com/predicate-gpu-idx-0": "0",
        "tencent.com/predicate-node": "Big-A",
        "tencent.com/gpu-assigned": "false",
    }


@in_any_case
def test_the_filter_by_whole_nodes(change: Change) -> None:
    paper = Paper([], [pod("p", container(), container(100, 10))])
    said = ask(predicates.answer, paper, request(paper.pods["p"], NODES), change)
    [found] = said.pop("Nodes")["items"]
    assert change_keys(found, str.lower) == change_keys(NODES[0], str.lower)
    assert said == {
        "NodeNames": None,
        "FailedNodes": {"b": "pod uid-p has already been matched to another node", "c": "no GPU device"},
        "FailedAndUnresolvableNodes": None,
        "Error": "",
    }
    assert paper.pods["p"]["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-1"] == "0"


@in_any_case
def test_scores(change: Change) -> None:
    chosen = pod("p", container(100), annotations={"tencent.com/predicate-node": "b"})
    body = request(chosen, names=["Big-A", "b"])
    assert ask(others.prioritize, Paper(NODES), body, change) == [
        {"Host": "Big-A", "Score": 0},
        {"Host": "b", "Score": 10},
    ]


@in_any_case
def test_a_binding(change: Change) -> None:
    paper = Bound(NODES, [pod("p", container(100), annotations={"tencent.com/predicate-node": "b"})])
    wanted = {"PodName": "p", "PodNamespace": "ml", "PodUID": "uid-p", "Node": "b"}
    assert ask(others.bind, paper, json.dumps(wanted).encode(), change) == {"Error": ""}
    path, body = paper.posted
    assert path == "/api/v1/namespaces/ml/pods/p/binding"
    assert body["metadata"] == {"name": "p", "namespace": "ml", "uid": "uid-p"}
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "b"}
    elsewhere = json.dumps({**wanted, "Node": "Big-A"}).encode()
    assert ask(others.bind, paper, elsewhere, change) == {"Error": "the GPUs of pod p were chosen on b, not on Big-A"}


@in_any_case
@pytest.mark.parametrize("whole", [True, False])
def test_preemption(whole: bool, change: Change) -> None:
    """It chooses, of two nodes that kube-scheduler would empty, the one whose GPU would then be free."""
    there = [pod(name, container(60, 1), annotations=dict(HELD), on="Big-A") for name in ("x", "y")]
    paper = Paper(NODES, [*there, pod("z", container(60, 1), annotations=dict(HELD), on="b")])
    victims = {"Big-A": ["x"], "b": ["z"]}
    field = "NodeNameToVictims" if whole else "NodeNameToMetaVictims"
    body: Json = {"Pod": pod("q", container(200)), field: {}}
    for name, pods in victims.items():
        going = [paper.pods[item] if whole else {"UID": f"uid-{item}"} for item in pods]
        body[field][name] = {"Pods": going, "NumPDBViolations": 1}
    said = ask(preempting.preempt, paper, json.dumps(body).encode(), change)
    assert said == {"NodeNameToMetaVictims": {"b": {"Pods": [{"UID": "uid-z"}], "NumPDBViolations": 1}}}


@pytest.mark.parametrize("body", [b"[]", b"7", b'{"Pod": 7}', b'{"Pod": {}, "NodeNameToVictims": []}', b"{"])
def test_what_is_no_preemption_is_refused(body: bytes) -> None:
    with pytest.raises(NotUnderstood):
        preempting.preempt(Paper(NODES).extended(), body)
