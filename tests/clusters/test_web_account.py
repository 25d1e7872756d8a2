"""The web server's own account in the Helm chart: it can do what the web server asks of its cluster, and no more."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import incluster_config

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster
from apps.clusters.services import clusters, connections, joining
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.cluster_objects import add_node
from tests.clusters.control_plane import ControlPlane
from tests.clusters.played import Played
from tests.clusters.rights import right_of, rights_of
from tests.clusters.test_joining import SUBJECT, token
from tests.helm import OUTSIDE, named, needs_helm, rendered
from tests.processes import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = needs_helm
ACCOUNT, WATCHER = "gpucloud-web", "gpucloud/gpucloud-cluster"
AGENTS, AGENT = "gpucloud-agents", "gpucloud-agent"
# What every account may ask: the version, and its own rights.
EVERYBODYS = ("/version", connections.REVIEWS)
# Modules of the web server that connect to a cluster. A new one needs its requests in `test_it_may_do_what_is_asked`.
CALLERS = {
    "importing/taking_over.py", "services/connections.py", "services/joining.py", "services/quota_drift.py",
}  # fmt: skip


def ask_everything(cast: Cast) -> dict[str, Any]:
    """Ask of the cluster what the web server asks of it: connection, quotas, import; return the answers."""
    return {
        "connection": cast.olga.get("clusters/kube/connection/").body,
        "quotas": cast.olga.get("clusters/kube/quotas/").body,
        "import": cast.olga.post("clusters/kube/import/?dry_run=true", {}).status,
    }


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with Played(tmp_path) as it:
        yield it


@pytest.fixture
def in_cluster(cast: Cast, settings: Any) -> Cluster:
    settings.CLUSTER_ACCOUNT = WATCHER
    return clusters.connect(
        principal=SYSTEM, name="kube", pool=cast.pool, in_cluster=True, agent_account=f"{AGENTS}/{AGENT}"
    )


def test_it_may_do_what_is_asked_and_nothing_else(
    cast: Cast, played: Played, in_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "kubeconfig_of", lambda cluster: yaml.safe_load(played.kubeconfig()))
    extra = {joining.POD_NAME: ["agent-x7"], joining.POD_UID: ["u-7"]}
    played.review = {"authenticated": True, "audiences": ["gpucloud"], "user": {"username": SUBJECT, "extra": extra}}
    agent = {"name": "agent-x7", "namespace": AGENTS, "uid": "u-7"}
    played.put("pods", {"metadata": agent, "spec": {"nodeName": "gpu-1"}, "status": {}})
    said = ask_everything(cast)
    assert (said["connection"]["missing"], said["quotas"]["reason"], said["import"]) == ([], "", 200)
    assert joining.join(cluster="kube", token=token(), key_digest="1" * 64).name == "gpu-1"
    asked = {right_of(*one) for one in played.requests if one[1] not in EVERYBODYS}
    assert asked == rights_of(ACCOUNT)


def test_nothing_else_of_the_web_server_connects_to_a_cluster() -> None:
    there = ROOT / "apps" / "clusters"
    words = {str(file.relative_to(there)): file.read_text() for file in there.rglob("*.py")}
    assert {name for name, text in words.items() if re.search(r"\bclient_of\(", text)} == CALLERS
    console = "".join(file.read_text() for file in (ROOT / "apps" / "console").rglob("*.py"))
    assert "kube.client import Client" not in console


def test_a_connection_test_asks_for_exactly_its_own_rights() -> None:
    own = {(need.group, need.resource, verb, need.name) for need in connections.OWN_NEEDS for verb in need.verbs}
    assert own == rights_of(ACCOUNT)


def test_the_web_pods_run_under_it_and_have_its_token() -> None:
    made = rendered(*OUTSIDE)
    assert named(made, "Deployment", "gpucloud-web")["spec"]["template"]["spec"]["serviceAccountName"] == ACCOUNT
    assert named(made, "ConfigMap", "gpucloud")["data"]["CLUSTER_ACCOUNT"] == WATCHER


def add(client: Client, path: str, body: dict[str, Any]) -> None:
    """Create an object unless it exists."""
    try:
        client.post(path, body)
    except Refused as error:
        if error.status != 409:
            raise


def apply_accounts(client: Client) -> None:
    """Create the accounts and their roles, as the chart does."""
    for namespace in ("gpucloud", AGENTS):
        add(client, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    for one in rendered(*OUTSIDE):
        if one["kind"] not in kinds:
            continue
        group = "/api/v1" if one["kind"] == "ServiceAccount" else "/apis/rbac.authorization.k8s.io/v1"
        namespace = one["metadata"].get("namespace")
        where = f"/namespaces/{namespace}" if namespace else ""
        add(client, f"{group}{where}/{one['kind'].lower()}s", one)


def token_of(client: Client, namespace: str, account: str, spec: dict[str, Any]) -> str:
    """Request a token as the kubelet does for a pod of the account."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return str(json.loads(client.post(path, {"spec": {"expirationSeconds": 600, **spec}}))["status"]["token"])


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start one of these tests' own: other tests remove the agents' namespace."""
    with ControlPlane(tmp_path_factory.mktemp("kube")) as it:
        yield it


@pytest.fixture
def as_the_web_pod(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Give this process the files and variables that the kubelet gives the web server's container."""
    client = plane.client()
    apply_accounts(client)
    (tmp_path / "token").write_text(token_of(client, "gpucloud", ACCOUNT, {}))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    certificate = str(plane.directory / "certificates" / "apiserver.crt")
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certificate)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(plane.port))
    # An API server heeds a new role within a second.
    assert eventually(may_list_pods, seconds=30)
    return client


def may_list_pods() -> bool:
    try:
        Client(None).list("/api/v1/pods")
    except Refused:
        return False
    return True


@pytest.mark.control_plane
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_on_a_real_api_server_the_account_can_do_all_of_it(
    cast: Cast, as_the_web_pod: Client, in_cluster: Cluster
) -> None:
    said: dict[str, Any] = {}

    def all_is_answered() -> bool:
        said.update(ask_everything(cast))
        connected = said["connection"]["reached"] and said["connection"]["missing"] == []
        return connected and (said["quotas"]["reason"], said["import"]) == ("", 200)

    assert eventually(all_is_answered, seconds=30), said
    admin, where = as_the_web_pod, f"/api/v1/namespaces/{AGENTS}/pods"
    add_node(admin, "web-1", gpus=1, units=96)
    spec = {"serviceAccountName": AGENT, "nodeName": "web-1", "containers": [{"name": "a", "image": "a"}]}
    uid = json.loads(admin.post(where, {"metadata": {"name": "agent"}, "spec": spec}))["metadata"]["uid"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": uid}
    word = token_of(admin, AGENTS, AGENT, {"audiences": ["gpucloud"], "boundObjectRef": bound})
    assert joining.join(cluster="kube", token=word, key_digest="1" * 64).kubernetes_node == "web-1"
    with pytest.raises(Refused, match="cannot patch resource"):
        Client(None).patch(f"{where}/agent", {"metadata": {"annotations": {"a": "b"}}})
    admin.delete(f"{where}/agent?gracePeriodSeconds=0")
    admin.delete("/api/v1/nodes/web-1")


@pytest.mark.control_plane
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_rights_that_the_watchs_account_lost_are_named_with_it(
    cast: Cast, as_the_web_pod: Client, in_cluster: Cluster
) -> None:
    admin, path = as_the_web_pod, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    admin.delete(f"{path}/gpucloud-cluster")
    missing: list[dict[str, str]] = []

    def all_are_missing() -> bool:
        missing[:] = ask_everything(cast)["connection"]["missing"]
        return {gap["resource"] for gap in missing} == {need.resource for need in connections.NEEDS}

    assert eventually(all_are_missing, seconds=30), missing
    apply_accounts(admin)
    assert all(f"account {WATCHER}" in gap["purpose"] for gap in missing)
