"""The Helm chart on a real API server: installed, upgraded, rolled back, removed, installed again; and its rights."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.clusters.kube.client import Client, Refused
from tests.clusters.control_plane import ControlPlane
from tests.helm import CHART, chosen, helm, needs_helm

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, needs_helm]

# Databases of its own, and everything that needs no operator.
VALUES = (
    "database.mode=bundled", "redis.mode=bundled", "webhooks.enabled=true", "networkPolicy.enabled=true",
    "sharepods.enabled=true", "host=gpus.example.org", "ingress.enabled=true",
)  # fmt: skip
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpucloud"
RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterroles/gpucloud-cluster"
INSIDE = "/api/v1/namespaces/gpucloud"
DEPLOYMENTS = "/apis/apps/v1/namespaces/gpucloud/deployments"


class Release:
    """The release `gpucloud` in its namespace, and what the API server has of it."""

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.client, self.kubeconfig = client, kubeconfig

    def run(self, *arguments: str, values: tuple[str, ...] = ()) -> str:
        home = str(self.kubeconfig.parent)
        place = ("--namespace", "gpucloud")
        done = helm(*arguments, *place, *chosen(values), KUBECONFIG=str(self.kubeconfig), HOME=home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, path: str) -> Any:
        return self.client.get(path)

    def exists(self, path: str) -> bool:
        try:
            self.client.get(path)
        except Refused as refused:
            if refused.status != 404:
                raise
            return False
        return True

    def secret(self, name: str) -> dict[str, str]:
        return dict(self.read(f"{INSIDE}/secrets/{name}")["data"])

    def replicas(self) -> int:
        return int(self.read(f"{DEPLOYMENTS}/gpucloud-web")["spec"]["replicas"])


@pytest.fixture(scope="module")
def empty_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a cluster in which nobody else made our namespaces and accounts."""
    with ControlPlane(tmp_path_factory.mktemp("kube")) as plane:
        yield plane


@pytest.fixture
def release(empty_plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    config = tmp_path / "kubeconfig"
    config.write_text(empty_plane.kubeconfig())
    it = Release(empty_plane.client(), config)
    yield it
    it.run("uninstall", "gpucloud", "--ignore-not-found")


def test_nothing_is_lost_from_install_to_install(release: Release) -> None:
    install = ("install", "gpucloud", str(CHART), "--create-namespace")
    tried = release.run(*install, "--dry-run=server", values=VALUES)
    assert "create_operator" in tried
    assert not release.exists(DEPLOYMENTS + "/gpucloud-web")
    release.run(*install, values=VALUES)
    before, authority = release.secret("gpucloud"), release.secret("gpucloud-webhooks")
    assert release.replicas() == 2
    assert release.exists("/apis/apps/v1/namespaces/gpucloud-agents/daemonsets/gpucloud-agent")
    for hook in release.read(HOOKS)["webhooks"]:
        assert hook["clientConfig"]["caBundle"] == authority["ca.crt"]
    assert base64.b64decode(before["DATABASE_URL"]).decode().startswith("postgresql://gpucloud:")

    more = (*VALUES, "web.replicas=3", "settings.LOCAL_ACCOUNTS=0")
    release.run("upgrade", "gpucloud", str(CHART), values=more)
    assert release.replicas() == 3
    assert release.read(f"{INSIDE}/configmaps/gpucloud")["data"]["LOCAL_ACCOUNTS"] == "0"
    assert (release.secret("gpucloud"), release.secret("gpucloud-webhooks")) == (before, authority)
    jobs = "/apis/batch/v1/namespaces/gpucloud/jobs/gpucloud-migrate-"
    assert release.exists(f"{jobs}2")
    assert not release.exists(f"{jobs}1")

    release.run("rollback", "gpucloud", "1")
    assert release.replicas() == 2
    assert (release.secret("gpucloud"), release.secret("gpucloud-webhooks")) == (before, authority)

    release.run("uninstall", "gpucloud")
    assert not release.exists(RBAC)
    assert not release.exists(HOOKS)
    assert release.secret("gpucloud") == before, "stored credentials need its SECRET_KEY"
    release.run(*install, values=VALUES)
    assert release.secret("gpucloud") == before


def test_a_namespace_that_an_admin_made_for_the_agents_is_used(release: Release) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    release.client.post("/api/v1/namespaces", {"metadata": {"name": "gpu-agents", "labels": labels}})
    own = (*VALUES, "agent.namespace=gpu-agents")
    release.run("upgrade", "--install", "gpucloud", str(CHART), "--create-namespace", values=own)
    assert release.exists("/apis/apps/v1/namespaces/gpu-agents/daemonsets/gpucloud-agent")
    found = release.read("/api/v1/namespaces/gpu-agents")["metadata"]["labels"]
    assert "app.kubernetes.io/managed-by" not in found


def may(client: Client, account: str, verb: str, resource: str, group: str = "") -> bool:
    """Return True if the account may do this to a resource (or one below it: pods/exec)."""
    name, _, sub = resource.partition("/")
    attributes = {"verb": verb, "resource": name, "subresource": sub, "group": group, "namespace": "vision"}
    place = "gpucloud-agents" if account == "gpucloud-agent" else "gpucloud"
    body = {"spec": {"user": f"system:serviceaccount:{place}:{account}", "resourceAttributes": attributes}}
    answer = json.loads(client.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", body))
    return bool(answer["status"]["allowed"])


def test_its_accounts_have_no_more_rights_than_they_need(release: Release) -> None:
    client = release.client
    release.run("upgrade", "--install", "gpucloud", str(CHART), "--create-namespace", values=VALUES)
    server = "gpucloud-cluster"
    for verb, resource in (
        ("watch", "pods"), ("patch", "pods"), ("create", "pods/binding"), ("list", "nodes"), ("watch", "namespaces"),
        ("create", "pods/eviction"), ("create", "resourcequotas"), ("create", "events"),
    ):  # fmt: skip
        assert may(client, server, verb, resource), (verb, resource)
    for verb, resource in (
        ("create", "pods"), ("delete", "pods"), ("create", "pods/exec"), ("get", "secrets"), ("patch", "nodes"),
        ("delete", "resourcequotas"), ("create", "namespaces"), ("create", "serviceaccounts/token"),
    ):  # fmt: skip
        assert not may(client, server, verb, resource), (verb, resource)
    assert may(client, "gpucloud-sharepods", "create", "pods")
    assert not may(client, "gpucloud-sharepods", "patch", "pods")
    for account in ("gpucloud", "gpucloud-agent"):
        assert not may(client, account, "get", "pods")
        assert not may(client, account, "list", "nodes")
