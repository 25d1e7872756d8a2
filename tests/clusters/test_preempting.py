"""Victims that the extender names: enough for the pod's GPUs, none too many, none that must not end."""

import json
import random
from typing import Any

import pytest

from apps.clusters.extender import preempting
from tests.clusters import oracle
from tests.clusters.paper import Paper, container, node, pod

Json = dict[str, Any]
INDEX = "tencent.com/predicate-gpu-idx-0"


def running(name: str, core: int, gpu: int, *, rank: int = 0, on: str = "a") -> Json:
    made = pod(name, container(core, 1), annotations={INDEX: str(gpu)}, on=on)
    made["spec"]["priority"] = rank
    return made


def wanting(core: int, *, rank: int = 9) -> Json:
    made = pod("wants", container(core, 1))
    made["spec"]["priority"] = rank
    return made


def victims(paper: Paper, asked: Json, *named: str) -> set[str] | None:
    """Return the victims of node a, for which kube-scheduler named these; None: the node is left out."""
    victims = {"a": {"Pods": [{"UID": f"uid-{name}"} for name in named]}}
    body = json.dumps({"Pod": asked, "NodeNameToMetaVictims": victims}).encode()
    said = json.loads(preempting.preempt(paper.extended(), body))["NodeNameToMetaVictims"]
    return {item["UID"].removeprefix("uid-") for item in said["a"]["Pods"]} if said else None


@pytest.fixture
def paper() -> Paper:
    """Create two GPUs, each with a cheap pod of 40 and an expensive one."""
    there = [
        running(f"{word}-{gpu}", 40, gpu, rank=rank) for word, rank in (("cheap", 1), ("dear", 2)) for gpu in (0, 1)
    ]
    return Paper([node("a", 200, 118)], there)


def test_where_the_sum_frees_no_gpu_as_few_more_go_as_do(paper: Paper) -> None:
    assert victims(paper, wanting(100), "cheap-0", "cheap-1") == {"cheap-0", "cheap-1", "dear-1"}
    assert victims(paper, wanting(60), "cheap-0") == {"cheap-0"}
    assert victims(paper, wanting(200), "cheap-0") == {"cheap-0", "cheap-1", "dear-0", "dear-1"}


def test_nobody_of_its_own_priority_goes(paper: Paper) -> None:
    assert victims(paper, wanting(100, rank=2), "cheap-0", "cheap-1") is None


def test_what_is_only_chosen_cannot_be_ended() -> None:
    chosen = pod("chosen", container(40, 1), annotations={INDEX: "0", "tencent.com/predicate-node": "a"})
    paper = Paper([node("a", 100, 59)], [chosen, running("runs", 40, 0)])
    assert victims(paper, wanting(100), "runs") is None


def fits(asked: Json, there: Json, staying: list[Json]) -> bool:
    """Return True if it fits, by the oracle of the filter."""
    return bool(oracle.answer(asked, [there], staying, strict=False)["names"])


def test_of_random_nodes_enough_go_and_nobody_who_need_not() -> None:
    dice, left_out, further = random.Random(7), 0, 0  # noqa: S311
    for _ in range(300):
        there, gpus = node("a", 400, 236), dice.choice([1, 2, 4])
        there["status"]["capacity"]["tencent.com/vcuda-core"] = str(gpus * 100)
        pods = [
            running(f"p{number:02}", dice.choice([20, 40, 60]), dice.randrange(gpus), rank=dice.randrange(4))
            for number in range(dice.randint(1, 8))
        ]
        asked = wanting(dice.choice([30, 70, 100, 200]), rank=dice.randrange(5))
        lower = [item for item in pods if item["spec"]["priority"] < asked["spec"]["priority"]]
        named = {item["metadata"]["name"] for item in lower if dice.random() < 0.3}
        found = victims(Paper([there], pods), asked, *sorted(named))
        if found is None:
            left_out += 1
            assert not fits(asked, there, [item for item in pods if item not in lower])
            continue
        assert named <= found <= {item["metadata"]["name"] for item in lower}
        staying = [item for item in pods if item["metadata"]["name"] not in found]
        assert fits(asked, there, staying)
        for name in found - named:
            further += 1
            back = next(item for item in pods if item["metadata"]["name"] == name)
            assert not fits(asked, there, sorted([*staying, back], key=lambda item: str(item["metadata"]["name"])))
    assert left_out > 20
    assert further > 20
