"""One of several extenders answers: by a Lease of a real API server, and taken over within five seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from apps.clusters.extender.lease import LEASE_SECONDS, RENEWED_SECONDS, RETRY_SECONDS, Lease
from apps.clusters.kube.client import Client, Refused, Unreachable
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.clusters.paper import Paper, container, node, pod, request
from tests.processes import eventually

PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases/gpucloud-extender"


class Kept:
    """The Lease of an API server in memory. `away`: it does not answer."""

    def __init__(self) -> None:
        self.there: dict[str, Any] | None = None
        self.version, self.away, self.patience_seconds = 0, False, 0.0
        # Runs once between another's read and its write.
        self.between: Callable[[], None] | None = None

    def find(self, path: str) -> dict[str, Any] | None:
        if self.away:
            raise Unreachable("the API server does not answer")
        found = None if self.there is None else {**self.there, "spec": dict(self.there["spec"])}
        between, self.between = self.between, None
        if between is not None:
            between()
        return found

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        return self.put(path, {**body, "metadata": {**body["metadata"], "resourceVersion": "0"}})

    def put(self, path: str, body: dict[str, Any]) -> bytes:
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Refused(409, "Conflict", "another was quicker")
        self.version += 1
        self.there = {"metadata": {"name": "x", "resourceVersion": str(self.version)}, "spec": body["spec"]}
        return b"{}"


def contender(kept: Any, identity: str) -> Lease:
    return Lease(lambda: kept, namespace="default", name="gpucloud-extender", identity=identity)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the moment, which a test changes."""
    now = [1000.0]
    monkeypatch.setattr("apps.clusters.extender.lease.time.monotonic", lambda: now[0])
    return now


def test_one_leads_and_the_other_takes_over_when_it_has_not_renewed(clock: list[float]) -> None:
    kept = Kept()
    a, b = contender(kept, "a"), contender(kept, "b")
    for _ in range(4):
        a.contend()
        b.contend()
        assert (a.leads(), b.leads()) == (True, False)
        clock[0] += RETRY_SECONDS
    while not b.leads():
        clock[0] += RETRY_SECONDS
        b.contend()
        assert not (a.leads() and b.leads())
    assert clock[0] - 1002 <= LEASE_SECONDS + RETRY_SECONDS
    assert kept.there is not None
    assert (kept.there["spec"]["holderIdentity"], kept.there["spec"]["leaseTransitions"]) == ("b", 1)
    a.contend()
    assert (a.leads(), b.leads()) == (False, True)


def test_a_leader_that_cannot_renew_stops_before_another_may_begin(clock: list[float]) -> None:
    kept = Kept()
    a = contender(kept, "a")
    a.contend()
    kept.away = True
    clock[0] += RENEWED_SECONDS - 0.1
    a.contend()
    assert a.leads()
    clock[0] += 0.2
    assert not a.leads()
    assert RENEWED_SECONDS < LEASE_SECONDS


def test_of_two_that_take_it_at_once_one_has_it(clock: list[float]) -> None:
    kept = Kept()
    a, b = contender(kept, "a"), contender(kept, "b")
    kept.between = b.contend
    a.contend()
    assert (a.leads(), b.leads()) == (False, True)


def test_who_ends_gives_it_back_and_another_leads_at_once(clock: list[float]) -> None:
    kept = Kept()
    a, b = contender(kept, "a"), contender(kept, "b")
    a.contend()
    a.give_back()
    clock[0] += 0.1
    b.contend()
    assert (a.leads(), b.leads()) == (False, True)


def test_only_the_leader_answers_kube_scheduler_and_is_ready() -> None:
    leads = [True]
    # The kubelet asks from addresses that are not among the clients.
    with Listening(networks=[], leads=lambda: leads[0]) as strangers:
        assert httpx.get(f"{strangers.url}/leading").status_code == 200
        leads[0] = False
        assert httpx.get(f"{strangers.url}/leading").status_code == 503
    with Listening(leads=lambda: leads[0]) as listening:
        listening.clusters["kube"] = Paper([node("a", 200, 118)], [pod("p", container(100, 1))]).extended()
        body = request(pod("p", container(100, 1)), [node("a", 200, 118)])
        assert httpx.post(f"{listening.url}/scheduler/predicates", content=body).status_code == 503
        leads[0] = True
        assert httpx.post(f"{listening.url}/scheduler/predicates", content=body).status_code == 200


@contextmanager
def contending(client: Client, identity: str) -> Iterator[Lease]:
    lease = contender(client, identity)
    thread = threading.Thread(target=lease.run, daemon=True)
    thread.start()
    yield lease
    lease.stop()
    thread.join(timeout=30)


@pytest.mark.control_plane
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_on_a_real_api_server_a_dead_leader_is_replaced_within_five_seconds(
    real_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = real_plane.client()
    with contending(client, "second") as second, contending(real_plane.client(), "first") as first:
        assert eventually(lambda: first.leads() or second.leads(), seconds=30)
        leader, other = (first, second) if first.leads() else (second, first)
        assert client.get(PATH)["spec"]["holderIdentity"] == leader._identity
        # It is killed: it neither renews nor gives back.
        monkeypatch.setattr(leader, "contend", lambda: None)
        begun, both = time.monotonic(), False
        while not other.leads():
            assert time.monotonic() - begun < 5
            time.sleep(0.01)
            both = both or (leader.leads() and other.leads())
        assert not both
        assert client.get(PATH)["spec"]["holderIdentity"] == other._identity
    assert client.get(PATH)["spec"]["holderIdentity"] == ""
