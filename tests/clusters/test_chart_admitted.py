"""The chart in the namespaces of strict admins: Pod Security, quotas, limited priority classes, and others' schemas."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from apps.clusters.kube.client import Client
from tests.clusters.cluster_objects import add_node
from tests.clusters.control_plane import ControlPlane
from tests.helm import CHART, EVERYTHING, OUTSIDE, chosen, helm, needs_helm, rendered
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300), needs_helm]
CONTROLLERS = ("deployment-controller", "replicaset-controller", "statefulset-controller", "daemonset-controller",
               "job-controller")  # fmt: skip
PARTS = ("web", "scheduler", "worker", "beat", "clusters", "extender", "sharepods", "webhooks", "migrate",
         "database.bundled", "redis.bundled")  # fmt: skip
# As on Google's clusters: pods of these classes are refused where no quota allows them.
LIMITED = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "ResourceQuotaConfiguration",
    "limitedResources": [
        {
            "resource": "pods",
            "matchScopes": [
                {
                    "scopeName": "PriorityClass",
                    "operator": "In",
                    "values": ["system-node-critical", "system-cluster-critical"],
                }
            ],
        }
    ],
}
HARD = {"requests.cpu": "8", "limits.cpu": "40", "requests.memory": "16Gi", "limits.memory": "64Gi", "pods": "40"}
# Folder with the CustomResourceDefinitions of CloudNativePG, cert-manager, Gateway API and the Prometheus operator.
CRDS = os.environ.get("GPUCLOUD_TEST_CRDS", "")
OF_OPERATORS: dict[str, tuple[tuple[str, ...], str]] = {
    "Cluster": (
        ("database.mode=cloudNativePG", "redis.url=redis://a", "database.cloudNativePG.storageClass=fast"),
        "/apis/postgresql.cnpg.io/v1/namespaces/default/clusters",
    ),
    "Certificate": (
        (*OUTSIDE, "webhooks.enabled=true", "webhooks.certificate.source=certManager"),
        "/apis/cert-manager.io/v1/namespaces/default/certificates",
    ),
    "Issuer": (
        (*OUTSIDE, "webhooks.enabled=true", "webhooks.certificate.source=certManager"),
        "/apis/cert-manager.io/v1/namespaces/default/issuers",
    ),
    "HTTPRoute": (
        (*OUTSIDE, "host=a.org", "gateway.enabled=true", "gateway.parentRefs[0].name=public"),
        "/apis/gateway.networking.k8s.io/v1/namespaces/default/httproutes",
    ),
    "PodMonitor": (
        (*OUTSIDE, "metrics.agents=true", "metrics.labels.release=prometheus"),
        "/apis/monitoring.coreos.com/v1/namespaces/default/podmonitors",
    ),
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a cluster whose controllers make pods."""
    admission = {"ResourceQuota": LIMITED}
    with ControlPlane(tmp_path_factory.mktemp("kube"), controllers=CONTROLLERS, admission=admission) as made:
        yield made


def objects(client: Client, path: str) -> list[dict[str, Any]]:
    return [json.loads(bytes(raw)) for raw in client.list(path)[0]]


def test_every_pod_is_admitted_by_strict_namespaces(plane: ControlPlane, tmp_path: Path) -> None:
    """Pod Security `restricted`, a quota that counts limits of processors, and limited priority classes."""
    client, config = plane.client(), tmp_path / "kubeconfig"
    config.write_text(plane.kubeconfig())
    add_node(client, "gpu1", gpus=2, units=96)
    client.post("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    client.post("/api/v1/namespaces", {"metadata": {"name": "gpucloud", "labels": labels}})
    quotas = "/api/v1/namespaces/gpucloud/resourcequotas"
    client.post(quotas, {"metadata": {"name": "admins"}, "spec": {"hard": HARD}})
    assert eventually(lambda: client.get(f"{quotas}/admins").get("status", {}).get("hard") == HARD, seconds=60)
    limits = tuple(f"{part}.resources.limits.cpu=1" for part in PARTS)
    values = (*EVERYTHING, *limits)
    arguments = ("install", "gpucloud", str(CHART), "--namespace", "gpucloud")
    done = helm(*arguments, *chosen(values), KUBECONFIG=str(config), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    wanted = sum(
        one["spec"].get("replicas", 1)
        for one in rendered(*values)
        if one["kind"] in ("Deployment", "StatefulSet", "Job")
    )

    def made() -> tuple[int, int]:
        places = ("gpucloud", "gpucloud-agents")
        found = tuple(len(objects(client, f"/api/v1/namespaces/{place}/pods")) for place in places)
        return found[0], found[1]

    def refusals() -> set[str]:
        return {one["message"] for one in objects(client, "/api/v1/events") if one["reason"] == "FailedCreate"}

    assert eventually(lambda: made() == (wanted, 1), seconds=90), (made(), wanted, refusals())


@pytest.fixture(scope="module")
def with_schemas(plane: ControlPlane) -> Client:
    """Let the API server know the kinds of the operators."""
    if not CRDS:
        pytest.skip("no schemas of operators: GPUCLOUD_TEST_CRDS names no folder")
    client = plane.client()
    for file in sorted(Path(CRDS).glob("*.yaml")):
        for one in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader):
            client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
    return client


@pytest.mark.parametrize("kind", OF_OPERATORS)
def test_objects_of_operators_are_valid_for_their_own_schemas(with_schemas: Client, kind: str) -> None:
    values, path = OF_OPERATORS[kind]
    [one] = [found for found in rendered(*values, namespace="default") if found["kind"] == kind]
    strictly = f"{path}?dryRun=All&fieldValidation=Strict"
    assert eventually(lambda: with_schemas.find(path) is not None, seconds=60)
    assert json.loads(with_schemas.post(strictly, one))["metadata"]["uid"]
    # The schema is heeded: an unknown field is refused.
    wrong = {**one, "spec": {**one["spec"], "noSuchField": 1}}
    with pytest.raises(Exception, match="noSuchField"):
        with_schemas.post(strictly, wrong)
