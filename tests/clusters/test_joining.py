"""A node joins with its cluster's confirmation only. test_real_joining.py tests a real API server's answers."""

import base64
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from django.db import connection
from django.utils import timezone

from apps.clusters.kube.client import Client, Refused, Unreachable
from apps.clusters.models import Cluster, JoinedNode
from apps.clusters.services import clusters, connections, joining
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import Cast, Machine
from tests.clusters.answering import Json
from tests.clusters.kubeconfigs import kubeconfig
from tests.scheduling.routes import dump_database

KEY, OTHER = "1" * 64, "2" * 64
ACCOUNT = "gpucloud-agents/gpucloud-agent"
SUBJECT = "system:serviceaccount:gpucloud-agents:gpucloud-agent"


def token(**more: Any) -> str:
    """Return a token's claims; its signature is not checked here."""
    said = {"sub": SUBJECT, "aud": ["gpucloud"], "exp": time.time() + 60, **more}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip('=')}.c2lnbmVk"


class Reviewing:
    """An API server that knows one pod of the agents."""

    said: Json = {}
    pod: Json = {}
    reviews = 0
    # Runs during a review.
    meanwhile: Callable[[], None] | None = None
    patience_seconds = 0.0

    def __init__(self, kubeconfig: Mapping[str, Any] | None) -> None:
        pass

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        assert (path, body["spec"]["audiences"]) == (joining.REVIEWS, ["gpucloud"])
        assert self.patience_seconds == joining.PATIENCE_SECONDS
        type(self).reviews += 1
        if (happens := type(self).meanwhile) is not None:
            type(self).meanwhile = None
            happens()
        return json.dumps({"status": self.said}).encode()

    def get(self, path: str, **query: str) -> Json:
        if path != "/api/v1/namespaces/gpucloud-agents/pods/agent-x7":
            raise Refused(404, "NotFound", path)
        return self.pod


@pytest.fixture
def cluster(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(connections, "Client", Reviewing)
    extra = {joining.POD_NAME: ["agent-x7"], joining.POD_UID: ["u-7"]}
    user = {"username": SUBJECT, "extra": extra}
    monkeypatch.setattr(Reviewing, "said", {"authenticated": True, "audiences": ["gpucloud"], "user": user})
    monkeypatch.setattr(Reviewing, "pod", {"metadata": {"uid": "u-7"}, "spec": {"nodeName": "gpu-1.example"}})
    monkeypatch.setattr(Reviewing, "reviews", 0)
    monkeypatch.setattr(Reviewing, "meanwhile", None)
    return clusters.connect(
        principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig(), agent_account=ACCOUNT
    )


def join(cast: Cast, *, key: str = KEY, **more: Any) -> tuple[int, str]:
    body = {"cluster": "kube", "token": token(), "key_digest": key, **more}
    answer = cast.nobody.post("clusters/join/", body)
    return answer.status, answer.body["node_name"] if answer.status == 200 else answer.code


def test_an_agent_of_the_cluster_becomes_its_node_without_a_token_of_ours(cast: Cast, cluster: Cluster) -> None:
    assert join(cast) == (200, "gpu-1-example")
    node = Node.objects.get()
    assert (node.pool, node.kubernetes_node) == (cast.pool, "gpu-1.example")
    assert (node.enrolment_digest, node.enrolment_expires_at) == (None, None)
    assert KEY not in str(dump_database())
    assert AuditEvent.objects.get(action="node.enrol").actor == "cluster:kube"
    before = dump_database()
    assert join(cast) == (200, "gpu-1-example")
    assert dump_database() == before


def test_a_machine_that_lost_its_state_gets_its_node_again_and_a_second_machine_does_not(
    cast: Cast, cluster: Cluster
) -> None:
    join(cast)
    machine = Node.objects.get()
    Node.objects.update(last_seen_at=timezone.now())
    assert join(cast, key=OTHER) == (403, "enrolment-refused")
    Node.objects.update(last_seen_at=None)
    assert join(cast, key=OTHER) == (200, "gpu-1-example")
    assert Node.objects.count() == 1
    assert JoinedNode.objects.get().node == machine


def test_a_forgotten_node_joins_again_by_an_operators_token_only(cast: Cast, cluster: Cluster) -> None:
    join(cast)
    forget_node(principal=SYSTEM, node=Node.objects.get())
    before = dump_database()
    for key in (KEY, OTHER):
        assert join(cast, key=key) == (403, "enrolment-refused")
    assert dump_database() == before
    _, enrolment = nodes.renew_enrolment(principal=SYSTEM, node=Node.objects.get())
    assert join(cast) == (403, "enrolment-refused")
    nodes.enrol(token=enrolment, key_digest=KEY)
    assert join(cast, key=OTHER) == (200, "gpu-1-example")


def test_a_node_that_is_forgotten_while_its_cluster_is_asked_stays_out(cast: Cast, cluster: Cluster) -> None:
    join(cast)

    def forget() -> None:
        forget_node(principal=SYSTEM, node=Node.objects.get())

    Reviewing.meanwhile = forget
    assert join(cast) == (403, "enrolment-refused")
    assert Node.objects.get().key_digest is None


def test_few_ask_the_api_server_at_a_time_and_others_are_told_to_come_again(cast: Cast, cluster: Cluster) -> None:
    inner: list[tuple[int, str]] = []

    def third() -> None:
        inner.append(join(cast))

    def second() -> None:
        Reviewing.meanwhile = third
        inner.append(join(cast))

    Reviewing.meanwhile = second
    assert join(cast) == (200, "gpu-1-example")
    assert inner == [(429, "busy"), (200, "gpu-1-example")]
    # A refusal uses up nobody's attempts.
    Reviewing.said = {"authenticated": False}
    assert {join(cast) for _ in range(3)} == {(403, "enrolment-refused")}


@pytest.mark.django_db(transaction=True)
def test_no_connection_to_the_database_is_held_while_the_api_server_is_asked(cast: Cast, cluster: Cluster) -> None:
    held: list[bool] = []
    Reviewing.meanwhile = lambda: held.append(connection.connection is not None)
    assert join(cast) == (200, "gpu-1-example")
    assert held == [False]


def test_an_api_server_that_says_nothing_is_waited_for_as_long_as_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = Client(yaml.safe_load(kubeconfig(server=url)))
        client.patience_seconds = 0.1
        began = time.monotonic()
        with pytest.raises(Unreachable):
            client.version()
    assert time.monotonic() - began < 5


def test_a_node_of_another_origin_is_not_taken_over(cast: Cast, cluster: Cluster) -> None:
    Machine("gpu-1-example", cast.pool)
    before = dump_database()
    assert join(cast) == (403, "enrolment-refused")
    assert dump_database() == before


@pytest.mark.parametrize(
    "change",
    [
        {"authenticated": False},
        {"audiences": ["https://kubernetes.default.svc"]},
        {"audiences": None},
        {"user": {"username": "system:serviceaccount:default:gpucloud-agent"}},
        {"user": {"username": SUBJECT, "extra": {}}},
        {"user": {"username": SUBJECT, "extra": {joining.POD_NAME: ["agent-x7"], joining.POD_UID: ["u-8"]}}},
        {"user": {"username": SUBJECT, "extra": {joining.POD_NAME: ["gone"], joining.POD_UID: ["u-7"]}}},
    ],
)
def test_what_the_api_server_does_not_vouch_for_is_refused(cast: Cast, cluster: Cluster, change: Json) -> None:
    Reviewing.said = {**Reviewing.said, **change}
    before = dump_database()
    assert join(cast) == (403, "enrolment-refused")
    assert dump_database() == before


def test_a_pod_on_no_node_is_no_node(cast: Cast, cluster: Cluster) -> None:
    Reviewing.pod = {"metadata": {"uid": "u-7"}, "spec": {}}
    assert join(cast) == (403, "enrolment-refused")


@pytest.mark.parametrize(
    "more",
    [
        {"token": "x"},
        {"token": "a.!.c"},
        {"token": f"a.{base64.urlsafe_b64encode(b'[' * 5000).decode()}.c"},
        {"token": token(sub="system:serviceaccount:default:default")},
        {"token": token(aud=["https://kubernetes.default.svc"])},
        {"token": token(exp=1)},
        {"token": token(exp="soon")},
        {"token": token(exp=10**400)},
        {"cluster": "none"},
    ],
)
def test_the_api_server_is_not_asked_for_what_cannot_be(cast: Cast, cluster: Cluster, more: Json) -> None:
    assert join(cast, **more) == (403, "enrolment-refused")
    assert Reviewing.reviews == 0


def test_a_cluster_lets_nobody_in_unless_its_operator_said_whom(cast: Cast, cluster: Cluster) -> None:
    said = cast.olga.patch("clusters/kube/", {"agent_account": ""})
    assert (said.status, said.body["agent_account"]) == (200, "")
    assert join(cast) == (403, "enrolment-refused")
    for wrong in ("agent", "a/b/c", "A/b", "a/", "/b"):
        assert cast.olga.patch("clusters/kube/", {"agent_account": wrong}).status == 400, wrong
    assert cast.olga.patch("clusters/kube/", {"agent_account": ACCOUNT}).status == 200
    assert join(cast)[0] == 200


def test_what_is_no_request_is_refused_by_its_fields(cast: Cast, cluster: Cluster) -> None:
    for more in ({"key_digest": "x"}, {"token": "t" * 9000}, {"cluster": None}):
        assert join(cast, **more) == (400, "invalid-fields")
