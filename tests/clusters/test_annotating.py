"""A pod whose annotations are refused for a moment holds up no other, and keeps its GPUs meanwhile."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
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

    def __init__(self, extended: Extended, paper: Paper, name: str, nodes: list[Json] = NODES) -> None:
        super().__init__(daemon=True)
        self._extended, self._body = extended, request(paper.pods[name], nodes)
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
    assert eventually(lambda: bool(extended.written), seconds=30)
    second = Asking(extended, paper, "q")
    second.join(30)
    assert (gpu_of(paper, "q"), first.is_alive(), second.said["Error"]) == ("1", True, "")
    first.join(30)
    assert (gpu_of(paper, "p"), first.said["Error"]) == ("0", "")


@pytest.fixture
def slow(paper: Paper) -> Iterator[threading.Event]:
    """Let the API server take its time to annotate `p`, until the event is set."""
    paper.slow["p"] = threading.Event()
    yield paper.slow["p"]
    paper.slow["p"].set()


def test_a_slow_api_server_delays_only_the_pod_that_it_writes(paper: Paper, slow: threading.Event) -> None:
    extended = paper.extended()
    first = Asking(extended, paper, "p")
    assert eventually(lambda: bool(extended.written), seconds=30)
    second = Asking(extended, paper, "q")
    second.join(30)
    assert (gpu_of(paper, "q"), first.is_alive(), second.said["Error"]) == ("1", True, "")
    slow.set()
    first.join(30)
    assert (gpu_of(paper, "p"), first.said["Error"]) == ("0", "")
    third = Asking(extended, paper, "r")
    third.join(30)
    assert list(third.said["FailedNodes"]) == ["a"], "both GPUs are taken"


def test_control_with_the_lock_held_the_other_pod_waits(
    paper: Paper, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicates._Decision, "_unlocked", lambda _: nullcontext())
    extended = paper.extended()
    first = Asking(extended, paper, "p")
    assert eventually(extended.lock.locked, seconds=30)
    second = Asking(extended, paper, "q")
    second.join(1)
    assert second.is_alive()
    slow.set()
    for one in (first, second):
        one.join(30)
    assert {gpu_of(paper, name) for name in "pq"} == {"0", "1"}


def test_what_the_watch_says_meanwhile_does_not_free_its_gpu(paper: Paper, slow: threading.Event) -> None:
    extended = paper.extended()
    first = Asking(extended, paper, "p")
    assert eventually(lambda: bool(extended.written), seconds=30)
    paper.see("p")
    second = Asking(extended, paper, "q")
    second.join(30)
    slow.set()
    first.join(30)
    assert (gpu_of(paper, "p"), gpu_of(paper, "q")) == ("0", "1")


def test_the_other_pod_gets_the_gpu_of_one_that_could_not_be_written(paper: Paper, slow: threading.Event) -> None:
    paper.refusals_of["p"] = [Refused(422, "Invalid", "not so")]
    extended = paper.extended()
    first = Asking(extended, paper, "p")
    assert eventually(lambda: bool(extended.written), seconds=30)
    Asking(extended, paper, "q").join(30)
    slow.set()
    first.join(30)
    assert first.said["FailedNodes"] == {"a": "update pod annotation failed"}
    Asking(extended, paper, "r").join(30)
    assert (gpu_of(paper, "p"), gpu_of(paper, "q"), gpu_of(paper, "r")) == (None, "1", "0")


def test_the_next_node_is_looked_at_anew_after_a_write_that_failed(slow: threading.Event, paper: Paper) -> None:
    """Another pod may have taken the room there while the API server took its time."""
    both = [node("a", 100, 96), node("b", 100, 96)]
    other = Paper(both, [pod(name, container(60, 10)) for name in "pq"])
    other.slow, other.refusals_of["p"] = paper.slow, [Refused(422, "Invalid", "not so")]
    extended = other.extended()
    first = Asking(extended, other, "p", both)
    assert eventually(lambda: bool(extended.written), seconds=30)
    Asking(extended, other, "q", both).join(30)
    assert other.pods["q"]["metadata"]["annotations"]["tencent.com/predicate-node"] == "b"
    slow.set()
    first.join(30)
    assert sorted(first.said["FailedNodes"]) == ["a", "b"]


def test_a_gang_is_written_in_one_go(paper: Paper, slow: threading.Event) -> None:
    for name in "pq":
        words = {"gpucloud.io/gang": "two", "gpucloud.io/gang-minimum": "2"}
        paper.pods[name]["metadata"]["annotations"] = words
        paper.see(name)
    extended = paper.extended()
    first = Asking(extended, paper, "q")
    assert eventually(extended.lock.locked, seconds=30)
    second = Asking(extended, paper, "r")
    second.join(1)
    assert second.is_alive(), "it waits: its place would be between the gang's pods"
    slow.set()
    first.join(30)
    second.join(30)
    assert {gpu_of(paper, name) for name in "pq"} == {"0", "1"}
    assert gpu_of(paper, "r") is None


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
    assert eventually(lambda: bool(extended.written), seconds=30)
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
