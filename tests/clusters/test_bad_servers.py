"""A reflector of an API server that misbehaves: no hot loop, Retry-After is heeded, and silence is noticed."""

import socket
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import httpx
import pytest
import yaml

from apps.clusters.extender.cluster import Extended
from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.objects import Event
from apps.clusters.kube.reflector import NODES, PODS, Reflector
from tests.clusters.cluster_objects import add_node
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.clusters.misbehaving import Misbehaving
from tests.processes import eventually

pytestmark = pytest.mark.serial


@contextmanager
def reflecting(server: Misbehaving, *, silence: float = 75.0) -> Iterator[tuple[Reflector, list[str]]]:
    """Reflect the server's pods; yield the reflector and the failures that it reports."""
    failures: list[str] = []
    client = server.client()
    client.silence_seconds = silence
    made = Reflector(client, PODS, see=lambda _: None, fail=lambda _, text: failures.append(text))
    made.start()
    try:
        yield made, failures
    finally:
        made.stop()


@pytest.mark.parametrize(("watches", "kind"), [("ends", "watch"), ("gone", "list")])
def test_watches_that_end_at_once_are_begun_after_growing_pauses(watches: str, kind: str) -> None:
    """Pauses of at least 0.25, 0.5, 1, 2 and 4 s: at most five attempts begin within 5 s."""
    with Misbehaving(watches) as server, reflecting(server):
        time.sleep(5)
        assert 2 <= server.count(kind) <= 5


def test_a_list_is_not_asked_for_again_before_the_time_that_the_server_names() -> None:
    with Misbehaving("bookmarks") as server:
        server.throttle = 3
        with reflecting(server) as (_, failures):
            assert eventually(lambda: server.count("list") == 1, seconds=30)
            server.throttle = 0
            assert eventually(lambda: server.count("watch") == 1, seconds=30)
        first, second = (at for at, kind in server.requests if kind == "list")
        assert second - first >= 3
        assert "429" in failures[0]


def test_the_pause_of_a_refusal_is_read_from_header_or_body() -> None:
    with Misbehaving() as server:
        server.throttle = 7
        with pytest.raises(Refused) as refused:
            server.client().list("/api/v1/pods")
        assert (refused.value.status, refused.value.pause_seconds) == (429, 7.0)


def test_a_frozen_server_is_noticed_by_its_silence() -> None:
    with Misbehaving("bookmarks") as server, reflecting(server, silence=1.0) as (reflector, failures):
        assert eventually(lambda: server.count("watch") == 1, seconds=30)
        time.sleep(2)
        assert (server.count("watch"), failures, reflector.age_seconds < 1) == (1, [], True)
        server.frozen.set()
        assert eventually(lambda: bool(failures), seconds=30)
        assert "Nothing was heard for" in failures[0]
        assert reflector.age_seconds >= 2
        server.frozen.clear()
        assert eventually(lambda: reflector.age_seconds < 1, seconds=60)


def test_a_server_without_bookmarks_is_asked_whether_it_is_there_and_is() -> None:
    with Misbehaving("quiet") as server, reflecting(server, silence=0.5) as (reflector, failures):
        assert eventually(lambda: server.count("version") >= 1, seconds=30)
        assert eventually(lambda: server.count("watch") >= 2, seconds=30)
        assert (failures, server.count("list"), reflector.age_seconds < 5) == ([], 1, True)


def test_a_connection_whose_peer_is_gone_ends_by_keepalive() -> None:
    with Misbehaving() as server:
        client = server.client()
        client.version()
        [kept] = list(client._pool.pools._container.values())
        connected = kept.pool.get_nowait()
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle, interval, count = (connected.sock.getsockopt(socket.IPPROTO_TCP, option) for option in options)
        assert connected.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert idle + interval * count <= 45
        connected.close()


def test_healthz_says_when_each_cluster_was_heard_and_fails_after_too_long() -> None:
    with Misbehaving("bookmarks") as server, Listening() as listening:
        age = {"pods": 3.0, "nodes": 12.0}
        extended = listening.begin("kube", server.client())
        assert isinstance(extended, Extended)
        extended.ages = lambda: age
        answer = httpx.get(f"{listening.url}/healthz")
        assert (answer.status_code, answer.text.splitlines()) == (
            200, ["ok", "kube: nodes heard 12 s ago", "kube: pods heard 3 s ago"],
        )  # fmt: skip
        age["nodes"] = 91.0
        answer = httpx.get(f"{listening.url}/healthz")
        assert (answer.status_code, answer.text.splitlines()[0]) == (503, "nothing heard from kube")


class Counted(Client):
    """A client that counts its watches."""

    watches = 0

    def watch(self, path: str, version: str, *, seconds: int, **query: str) -> Generator[Event, None, None]:
        self.watches += 1
        return super().watch(path, version, seconds=seconds, **query)


@pytest.mark.control_plane
@pytest.mark.timeout(400)
def test_a_real_api_servers_bookmarks_come_within_the_silence(real_plane: ControlPlane) -> None:
    """A quiet watch lasts. Bookmarks come once anything of the kind has changed since the watch began."""
    client, oldest, failures, mirror = Counted(yaml.safe_load(real_plane.kubeconfig())), 0.0, list[str](), Mirror()
    add_node(client, "bookmarks", gpus=1, units=96)
    made = Reflector(client, NODES, see=mirror.see, fail=lambda _, text: failures.append(text))
    made.start()
    assert eventually(lambda: client.watches == 1, seconds=30)
    client.patch("/api/v1/nodes/bookmarks", {"metadata": {"annotations": {"changed": "once"}}})
    until = time.monotonic() + 150
    while time.monotonic() < until:
        oldest = max(oldest, made.age_seconds)
        time.sleep(0.2)
    made.stop()
    assert (failures, made.lists, client.watches) == ([], 1, 1)
    assert 50 < oldest < 75
    client.delete("/api/v1/nodes/bookmarks")
