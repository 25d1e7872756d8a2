"""A reflector of one kind of a cluster's objects: after an event that it cannot parse it lists again, after a pause."""

import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from apps.clusters.kube import reflector
from apps.clusters.kube.client import Client
from apps.clusters.kube.objects import Event, ListMetadata, Page
from apps.clusters.kube.reflector import PODS, Observation, Reflector

GOOD = msgspec.Raw(b'{"metadata": {"name": "p", "namespace": "ml", "resourceVersion": "5"}, "spec": {}, "status": {}}')
BAD = msgspec.Raw(b'{"metadata": 7}')


class Served:
    """An API server with a test's lists and watches; afterwards the reflector is stopped."""

    def __init__(self, lists: list[msgspec.Raw], events: list[msgspec.Raw]) -> None:
        self.lists, self.events = lists, events
        self.asked: list[str] = []
        self.seen: list[Observation] = []
        self.failures: list[str] = []
        self.reflector = Reflector(
            typing.cast(Client, self), PODS, see=self.seen.append, fail=lambda kind, text: self.failures.append(text)
        )

    def pages(self, path: str, **query: str) -> Iterator[Page]:
        self.asked.append("list")
        yield Page(ListMetadata("3"), [self.lists.pop(0)])

    def watch(self, path: str, version: str, **_: Any) -> Iterator[Event]:
        self.asked.append(f"watch from {version}")
        if not self.events:
            self.reflector.stop()
            return
        yield Event("ADDED", self.events.pop(0))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of consecutive failures before each pause."""
    made: list[int] = []

    def pause(failures: int) -> float:
        made.append(failures)
        return 0.0

    monkeypatch.setattr(reflector, "pause_seconds", pause)
    return made


def test_a_list_that_is_not_understood_is_asked_for_again(pauses: list[int]) -> None:
    served = Served([BAD, BAD, GOOD], [])
    served.reflector.run()
    assert served.asked == ["list", "list", "list", "watch from 3"]
    assert [(seen.whole, len(seen.objects)) for seen in served.seen] == [(True, 1)]
    assert pauses == [1, 2]
    assert len(served.failures) == 2


def test_an_event_that_is_not_understood_is_not_asked_for_again(pauses: list[int]) -> None:
    served = Served([GOOD, GOOD], [GOOD, BAD])
    served.reflector.run()
    assert served.asked == ["list", "watch from 3", "watch from 5", "list", "watch from 3"]
    # The first watch ended at once, too, as a second one would after it.
    assert pauses == [1, 2]
