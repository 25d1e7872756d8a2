"""A pod whose annotations are refused for a moment holds up no other, and keeps its GPUs meanwhile."""

import json
import threading
import time
from typing import Any

import pytest

from apps.clusters.extender import predicates
from apps.clusters.extender.cluster import Extended
from apps.clusters.kube.client import Refused
from tests.clusters.paper import Paper, container, node, pod, request
from tests.processes import eventually

NODES = [node("a", 200, 192)]
INDEX = "tencent.com/predicate-gpu-idx-0"
Json = dict[str, Any]


def busy(pause_seconds: float = 0.0) -> Refused:
    return Refused(503, "ServiceUnavailable", "try again", pause_seconds=pause_seconds)


class Asking(threading.Thread):
    """A request of kube-scheduler for one pod."""

    def __init__(self, extended: Extended, paper: Paper, name: str) -> None:
        super().__init__(daemon=True)
        self._extended, self._body = extended, request(paper.pods[name], NODES)
        self.said: Json = {}
        self.start()

    def run(self) -> None:
        self.said = json.loads(predicates.answer(self._extended, self._body))


@pytest.fixture
def paper() -> Paper:
    return Paper(NODES, [pod(name, container(60, 10)) for name in "pqr"])


def gpu_of(paper: Paper, name: str) -> str | None:
    annotations: dict[str, str] = paper.pods[name]["metadata"]["annotations"]
    return annotations.get(INDEX)


def test_others_are_placed_while_it_is_tried_again_and_not_on_its_gpu(paper: Paper) -> None:
    extended = paper.extended()
    paper.refusals_of["p"] = [busy(2.0)]
    first = Asking(extended, paper, "p")
    assert eventually(lambda: bool(extended.retried), seconds=30)
    second = Asking(extended, paper, "q")
    second.join(30)
    assert (gpu_of(paper, "q"), first.is_alive(), second.said["Error"]) == ("1", True, "")
    first.join(30)
    assert (gpu_of(paper, "p"), first.said["Error"]) == ("0", "")


def test_one_that_is_refused_for_good_gives_its_gpu_back(paper: Paper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "PAUSE_SECONDS", 0.01)
    paper.refusals_of["p"] = [busy()] * 10
    extended = paper.extended()
    asked = Asking(extended, paper, "p")
    asked.join(30)
    assert asked.said["FailedNodes"] == {"a": "update pod annotation failed"}
    for name, gpu in (("q", "0"), ("r", "1")):
        Asking(extended, paper, name).join(30)
        assert gpu_of(paper, name) == gpu


def test_a_second_request_for_it_waits_for_the_first_one(paper: Paper) -> None:
    """kube-scheduler has given up the first; two writes could name two nodes."""
    extended = paper.extended()
    paper.refusals_of["p"] = [busy(1.0)]
    first = Asking(extended, paper, "p")
    assert eventually(lambda: bool(extended.retried), seconds=30)
    second = Asking(extended, paper, "p")
    second.join(30)
    assert second.said["Error"] == "pod p is being annotated: try again"
    first.join(30)
    assert gpu_of(paper, "p") == "0"


def test_a_long_retry_after_is_left_to_kube_scheduler(paper: Paper) -> None:
    paper.refusals_of["p"] = [busy(30.0)]
    begun = time.monotonic()
    asked = Asking(paper.extended(), paper, "p")
    asked.join(30)
    assert asked.said["FailedNodes"] == {"a": "update pod annotation failed"}
    assert time.monotonic() - begun < 20
