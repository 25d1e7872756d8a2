"""The filter's answers equal gpu-admission's for thousands of random pods and nodes."""

import json
import random
from typing import Any

import pytest

from apps.clusters.core.quantities import NotAQuantity, value
from apps.clusters.extender import predicates
from apps.clusters.kube.client import Refused
from tests.clusters import oracle
from tests.clusters.paper import Paper, container, node, pod, request

Json = dict[str, Any]
CORES = (0, 1, 10, 25, 30, 50, 60, 99, 100, 100, 150, 200, 300)
ODD = ("", "x", "0,", "0, 1", "7", "0,1", "1_0", "٣")


def make_node(dice: random.Random, number: int) -> Json:
    gpus = dice.choice([0, 1, 2, 4, 8])
    memory = dice.choice(["0", str(gpus * dice.choice([4, 59, 90])), str(dice.randint(0, 700)), "1Ki"])
    made = node(f"node{number:03}", dice.choice([gpus * 100, gpus * 100 + 50 if gpus else 0]), memory)
    if gpus == 0 and dice.random() < 0.5:
        del made["status"]["capacity"]["tencent.com/vcuda-core"]
    return made


def make_container(dice: random.Random) -> Json:
    core, memory = dice.choice(CORES), dice.choice([0, 1, 3, 10, 30, 59])
    return container(core if dice.random() < 0.9 else None, memory if dice.random() < 0.85 else None)


def make_pod(dice: random.Random, number: int, nodes: list[Json]) -> Json:
    containers = [make_container(dice) for _ in range(dice.choice([1, 1, 1, 2, 3]))]
    where = dice.choice(nodes)["metadata"]["name"]
    annotations, on = {}, ""
    if dice.random() < 0.8:
        for place, item in enumerate(containers):
            many = max(1, oracle.limit(item, oracle.CORE) // 100)
            indexes = ",".join(map(str, dice.sample(range(9), many)))
            annotations[f"tencent.com/predicate-gpu-idx-{place}"] = dice.choice([indexes] * 9 + [dice.choice(ODD)])
        annotations["tencent.com/predicate-node"] = where
    if dice.random() < 0.7:
        on = dice.choice([where, where, dice.choice(nodes)["metadata"]["name"]])
    phase = dice.choice(["Pending", "Running", "Running", "Succeeded", "Failed"])
    return pod(f"pod{number:04}", *containers, annotations=annotations, on=on, phase=phase)


def by_oracle_and_by_us(paper: Paper, asked: Json, *, strict: bool, by_name: bool) -> tuple[Json, Json]:
    pods = [item for key, item in sorted(paper.pods.items()) if key != asked["metadata"]["name"]]
    due = oracle.answer(asked, paper.nodes, pods, strict=strict)
    names = [item["metadata"]["name"] for item in paper.nodes]
    body = request(asked, None if by_name else paper.nodes, names if by_name else None)
    paper.pods[asked["metadata"]["name"]] = asked
    before = dict(asked["metadata"]["annotations"])
    said = json.loads(predicates.answer(paper.extended(strict=strict), body))
    found = said["NodeNames"] if by_name else said["Nodes"] and [x["metadata"]["name"] for x in said["Nodes"]["items"]]
    written = {
        key: text
        for key, text in asked["metadata"]["annotations"].items()
        if before.get(key) != text and "time" not in key
    }
    wanted = {key: text for key, text in due["annotations"].items() if before.get(key) != text}
    got = {"names": found, "failed": said["FailedNodes"], "error": said["Error"], "annotations": written}
    return {**due, "annotations": wanted}, got


def compare(rounds: int, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    asked_in_all = 0
    placed = 0
    while asked_in_all < rounds:
        nodes = [make_node(dice, number) for number in range(dice.choice([1, 3, 6]))]
        paper = Paper(nodes, [make_pod(dice, number, nodes) for number in range(dice.choice([0, 3, 12]))])
        strict, by_name = dice.random() < 0.3, dice.random() < 0.3
        for number in range(1000, 1020):
            asked = pod(f"pod{number}", *(make_container(dice) for _ in range(dice.choice([1, 1, 2, 3]))))
            if dice.random() < 0.1:
                asked["metadata"]["annotations"] = {"tencent.com/gpu-assigned": "false"}
            due, got = by_oracle_and_by_us(paper, asked, strict=strict, by_name=by_name)
            assert got == due, (seed, asked)
            asked_in_all += 1
            placed += bool(due["annotations"])
    # Otherwise it would only compare refusals.
    assert placed > rounds // 10


def test_thousands_of_random_pods_are_answered_as_by_the_original() -> None:
    compare(3000, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_tens_of_thousands_of_random_pods_are_answered_as_by_the_original(seed: int) -> None:
    compare(5000, seed=seed)


def answered(paper: Paper, body: bytes, **options: Any) -> Json:
    said: Json = json.loads(predicates.answer(paper.extended(**options), body))
    assert set(said) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    return said


def test_a_node_goes_back_as_it_came() -> None:
    nodes = [node("a", 100, 59, labels={"x": "y"}, strange={"Key": [1, None]})]
    said = answered(Paper(nodes, [pod("p", container(10, 1))]), request(pod("p", container(10, 1)), nodes))
    assert said["Nodes"] == {"metadata": {}, "items": nodes}


def test_a_pod_without_gpus_passes_everywhere() -> None:
    nodes = [node("a", 100, 59), node("b", 0, 0)]
    said = answered(Paper(nodes), request(pod("p", container()), nodes, names=["a", "b"]))
    assert said["Nodes"]["items"] == nodes
    assert (said["NodeNames"], said["FailedNodes"], said["Error"]) == (["a", "b"], None, "")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"Pod": 7}', b"{}", b'{"Pod": null, "Nodes": null}', b"\xff", b"[" * 10000]
)
def test_what_is_not_understood_is_an_error_in_the_answer(body: bytes) -> None:
    said = answered(Paper([]), body)
    assert said["Error"]
    assert said["Nodes"] is None


def test_a_pod_whose_binding_failed_may_use_what_it_was_promised() -> None:
    nodes = [node("a", 100, 59)]
    paper = Paper(nodes, [pod("p", container(100, 10))])
    assert answered(paper, request(paper.pods["p"], nodes))["Nodes"]["items"] == nodes
    again = answered(paper, request(paper.pods["p"], nodes))
    assert (again["Nodes"]["items"], again["Error"]) == (nodes, "")


def test_a_strict_extender_wedges_it_as_the_original_does() -> None:
    nodes = [node("a", 100, 59)]
    paper = Paper(nodes, [pod("p", container(100, 10))])
    answered(paper, request(paper.pods["p"], nodes), strict=True)
    assert answered(paper, request(paper.pods["p"], nodes), strict=True)["Error"] == "pod p had been predicated!"


def test_what_was_just_promised_counts_before_the_watch_tells() -> None:
    nodes = [node("a", 100, 59)]
    paper = Paper(nodes, [pod("p", container(60, 10)), pod("q", container(60, 10))])
    answered(paper, request(paper.pods["p"], nodes))
    said = answered(paper, request(paper.pods["q"], nodes))
    assert said["FailedNodes"] == {"a": "pod uid-q does not match with this node"}


def test_where_a_pod_cannot_be_annotated_the_next_node_is_tried() -> None:
    nodes = [node("a", 100, 59), node("b", 200, 118)]
    paper = Paper(nodes, [pod("p", container(60, 10))])
    paper.refusals = [Refused(403, "Forbidden", "no")]
    said = answered(paper, request(paper.pods["p"], nodes))
    assert said["FailedNodes"] == {"a": "update pod annotation failed"}
    assert [item["metadata"]["name"] for item in said["Nodes"]["items"]] == ["b"]


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("8", 8),
        (8, 8),
        ("1500m", 2),
        ("2k", 2000),
        ("1Gi", 1 << 30),
        ("1e3", 1000),
        ("0.1", 1),
        ("1E", 10**18),
        ("-2", -2),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str | int, due: int) -> None:
    assert value(text) == due


@pytest.mark.parametrize("text", ["", "x", "1x", "Gi", "1 Gi", "1_0", "1e99999999", "NaN", "Infinity", "1KiKi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(NotAQuantity):
        value(text)


@pytest.mark.parametrize("core", ["1e99", "1e12", "1000000000000", "6500"])
def test_a_node_that_tells_of_more_gpus_than_a_machine_has_is_passed_over(core: str) -> None:
    """Its own kubelet may write that: it must not exhaust our memory."""
    nodes = [node("odd", core, 10**6), node("node", 200, 118)]
    paper = Paper(nodes, [item := pod("p", container(30, 10))])
    said = answered(paper, request(item, nodes))
    assert [found["metadata"]["name"] for found in said["Nodes"]["items"]] == ["node"]
    assert set(said["FailedNodes"]) == {"odd"}
