"""Trust on a real control plane: kube-scheduler by its certificate, agents by their pods' tokens."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.clusters.kube.client import Client
from apps.clusters.services import clusters, connections, joining, scheduler_configuration
from apps.nodes.models import Node
from apps.nodes.services.nodes import EnrolmentRefused
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters import authority
from tests.clusters.cluster_objects import CORE, INDEX, add_namespace, add_node, pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
SCHEDULER = "gpucloud-by-certificate"
AGENTS, ACCOUNT = "gpucloud-agents", "gpucloud-agent"


class Recorded(Client):
    """A client that records its objects."""

    posts: list[str]

    def post(self, path: str, body: Any) -> bytes:
        self.posts.append(path)
        return super().post(path, body)


@pytest.fixture
def by_certificate(real_plane: ControlPlane, tmp_path: Path) -> Iterator[tuple[Listening, Recorded]]:
    """Start a second scheduler, whose extender requires its certificate for bindings."""
    trusted = authority.make(tmp_path / "tls")
    certificate, key = authority.client(trusted, "kube-scheduler")
    files: dict[str, Any] = {"caFile": f"{trusted}/ca.crt", "certFile": str(certificate), "keyFile": str(key)}
    listener = Listening(
        ssl_certfile=f"{trusted}/tls.crt", ssl_keyfile=f"{trusted}/tls.key", ssl_ca_certs=f"{trusted}/ca.crt",
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )  # fmt: skip
    client = Recorded(yaml.safe_load(real_plane.kubeconfig()))
    client.posts = []
    with listener:
        listener.begin("kube", client)
        entry = scheduler_configuration.extender(listener.url, everything=True, by_name=True, **files)
        real_plane.start_scheduler(scheduler_configuration.configuration(entry, scheduler_name=SCHEDULER))
        yield listener, client
        real_plane.stop_one("kube-scheduler")


def test_a_scheduler_with_a_certificate_binds_through_us_and_nobody_without_one(
    by_certificate: tuple[Listening, Recorded], tmp_path: Path
) -> None:
    listener, client = by_certificate
    add_node(client, "by-certificate", gpus=2, units=96)
    add_namespace(client, "trusted")
    container = {"name": "main", "image": "cuda", "resources": {"limits": {CORE: "200"}}}
    client.post(
        "/api/v1/namespaces/trusted/pods",
        {"metadata": {"name": "whole"}, "spec": {"schedulerName": SCHEDULER, "containers": [container]}},
    )
    assert eventually(lambda: "nodeName" in pod(client, "trusted", "whole")["spec"], seconds=60)
    assert pod(client, "trusted", "whole")["metadata"]["annotations"][INDEX] == "0,1"
    assert client.posts.count("/api/v1/namespaces/trusted/pods/whole/binding") == 1
    stranger = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
    # With TLS 1.3 the refusal comes with the first answer, and its form depends on the timing.
    with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
        urllib.request.urlopen(f"{listener.url}/version", context=stranger, timeout=10)  # noqa: S310 - loopback
    client.delete("/api/v1/namespaces/trusted/pods/whole?gracePeriodSeconds=0")
    client.delete("/api/v1/nodes/by-certificate")


def _token(client: Client, pod_name: str, pod_uid: str, *, audience: str = "gpucloud", account: str = ACCOUNT) -> str:
    """Request a token as the kubelet does for a projected volume."""
    spec = {
        "audiences": [audience],
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": pod_uid},
        "expirationSeconds": 600,
    }
    path = f"/api/v1/namespaces/{AGENTS}/serviceaccounts/{account}/token"
    return str(json.loads(client.post(path, {"spec": spec}))["status"]["token"])


@pytest.fixture
def agents(real_plane: ControlPlane) -> Iterator[Client]:
    """Create a cluster with one machine, and the agents' namespace."""
    client = real_plane.client()
    add_node(client, "gpu-1.example", gpus=2, units=96)
    add_namespace(client, AGENTS)
    for account in (ACCOUNT, "other"):
        client.post(f"/api/v1/namespaces/{AGENTS}/serviceaccounts", {"metadata": {"name": account}})
    yield client
    # No kubelet ends its pods, and other tests make the namespace anew.
    for item in client.list(f"/api/v1/namespaces/{AGENTS}/pods")[0]:
        remove(client, AGENTS, json.loads(bytes(item))["metadata"]["name"])
    client.delete(f"/api/v1/namespaces/{AGENTS}")
    client.delete("/api/v1/nodes/gpu-1.example")
    assert eventually(lambda: client.find(f"/api/v1/namespaces/{AGENTS}") is None, seconds=60)


def _pod(client: Client, account: str = ACCOUNT) -> str:
    """Create an agent's pod, bound by the DaemonSet's controller; return its uid."""
    spec = {"serviceAccountName": account, "nodeName": "gpu-1.example", "containers": [{"name": "a", "image": "a"}]}
    body = {"metadata": {"name": account}, "spec": spec}
    return str(json.loads(client.post(f"/api/v1/namespaces/{AGENTS}/pods", body))["metadata"]["uid"])


@pytest.mark.django_db
def test_an_agent_joins_by_the_token_of_its_pod_and_by_no_other(
    cast: Cast, real_plane: ControlPlane, agents: Client
) -> None:
    clusters.connect(
        principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=real_plane.kubeconfig(),
        agent_account=f"{AGENTS}/{ACCOUNT}",
    )  # fmt: skip
    mine, others = _pod(agents), _pod(agents, "other")
    wrong = [
        _token(agents, ACCOUNT, mine, audience="https://kubernetes.default.svc"),
        _token(agents, "other", others, account="other"),
        _token(agents, ACCOUNT, mine) + "x",
    ]
    for token in wrong:
        with pytest.raises(EnrolmentRefused):
            joining.join(cluster="kube", token=token, key_digest="1" * 64)
    assert not Node.objects.exists()
    good = _token(agents, ACCOUNT, mine)
    node = joining.join(cluster="kube", token=good, key_digest="1" * 64)
    assert (node.name, node.kubernetes_node, node.pool) == ("gpu-1-example", "gpu-1.example", cast.pool)
    # The API server knows which pod it was: once that is gone the token is invalid.
    agents.delete(f"/api/v1/namespaces/{AGENTS}/pods/{ACCOUNT}?gracePeriodSeconds=0")
    with pytest.raises(EnrolmentRefused):
        joining.join(cluster="kube", token=good, key_digest="2" * 64)


@pytest.mark.django_db
def test_a_kubeconfig_by_certificate_has_the_rights_of_its_user(cast: Cast, real_plane: ControlPlane) -> None:
    tried = {}
    for user, groups in {"mighty": ("system:masters",), "nobody": ()}.items():
        kubeconfig = real_plane.kubeconfig_by_certificate(user, *groups)
        cluster = clusters.connect(principal=SYSTEM, name=user, pool=cast.pool, kubeconfig=kubeconfig)
        tried[user] = connections.attempt(principal=SYSTEM, cluster=cluster)
    assert tried["mighty"].reached
    assert tried["mighty"].missing == []
    assert {gap.resource for gap in tried["nobody"].missing} == {need.resource for need in connections.NEEDS}
