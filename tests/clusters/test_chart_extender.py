"""The chart's extender on a real API server, asked by a real kube-scheduler as `manage.py scheduler_config` says.

Its command, variables, account and rights are those of the rendered chart. What a node would add is not here: the
Service's address, and the token that a kubelet mounts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from django.db import connection

from apps.clusters.kube.client import Client
from apps.clusters.services import clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.cluster_objects import add_namespace, add_node, ask, placement_of, pod
from tests.clusters.control_plane import ControlPlane
from tests.clusters.test_web_account import token_of
from tests.helm import CHART, OUTSIDE, chosen, helm, named, needs_helm, rendered
from tests.ports import free_port
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300), needs_helm]
ROOT = CHART.parent.parent.parent
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpucloud/leases/gpucloud-extender"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a cluster in which the chart is installed."""
    directory = tmp_path_factory.mktemp("kube")
    with ControlPlane(directory) as made:
        config = directory / "kubeconfig"
        config.write_text(made.kubeconfig())
        arguments = ("install", "gpucloud", str(CHART), "--namespace", "gpucloud", "--create-namespace")
        done = helm(*arguments, *chosen(OUTSIDE), KUBECONFIG=str(config), HOME=str(directory))
        assert done.returncode == 0, done.stderr
        client = made.client()
        add_node(client, "gpu1", gpus=2, units=96)
        add_namespace(client, "ml")
        yield made


def kubeconfig_of_the_account(plane: ControlPlane) -> str:
    """Return a kubeconfig with a token as the kubelet mounts it into the extender's pods."""
    whole = yaml.safe_load(plane.kubeconfig())
    whole["users"][0]["user"] = {"token": token_of(plane.client(), "gpucloud", "gpucloud-cluster", {})}
    return str(yaml.safe_dump(whole))


@contextmanager
def extender(log: Path, *values: str) -> Iterator[str]:
    """Start it as the chart does with these values; return its address once it leads."""
    documents = rendered(*OUTSIDE, *values)
    spec = named(documents, "Deployment", "gpucloud-extender")["spec"]["template"]["spec"]
    [container] = spec["containers"]
    given = {one["name"]: one["value"] for one in container["env"]}
    settings = named(documents, "ConfigMap", "gpucloud")["data"]
    facts, port = connection.get_connection_params(), free_port()
    secret = {
        "SECRET_KEY": os.environ["SECRET_KEY"],
        "DATABASE_URL": f"postgresql://{facts['user']}@/{facts['dbname']}?host={facts['host']}",
        "REDIS_URL": "unix:///nonexistent/valkey.sock",
    }
    python, *arguments = container["command"]
    assert python == "python"
    assert [one["containerPort"] for one in container["ports"]] == [3456]
    environment = {"PATH": os.environ["PATH"], **settings, **given, **secret, "EXTENDER_PORT": str(port)}
    url = f"http://127.0.0.1:{port}"

    def answers(probe: str) -> bool:
        try:
            return httpx.get(url + container[probe]["httpGet"]["path"]).status_code == 200
        except httpx.TransportError:
            return False

    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=out, stderr=out)
        try:
            assert eventually(lambda: answers("livenessProbe") and answers("readinessProbe"), seconds=90), (
                log.read_text()
            )
            yield url
        finally:
            process.kill()
            process.wait()


def scheduler_configuration(url: str) -> dict[str, Any]:
    """Return what the operator gives to kube-scheduler, as docs/kubernetes.md says."""
    facts = connection.get_connection_params()
    database = f"postgresql://{facts['user']}@/{facts['dbname']}?host={facts['host']}"
    command = [sys.executable, "manage.py", "scheduler_config", "--url", url]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "DATABASE_URL": database}, capture_output=True, text=True, check=True
    )
    made: dict[str, Any] = yaml.safe_load(done.stdout)
    return made


def test_a_pod_is_bound_by_the_charts_own_extender(real_cast: Cast, plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = kubeconfig_of_the_account(plane)
    clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubeconfig)
    client, log = plane.client(), tmp_path / "log"
    # Addresses of machines, none of which is this one: kube-scheduler is refused, and says so.
    with extender(log, "extender.cidrs[0]=10.9.0.0/16") as url:
        assert client.get(LEASE)["spec"]["holderIdentity"]
        plane.start_scheduler(scheduler_configuration(url))
        try:
            ask(client, "ml", "refused", core=30, memory=10)
            assert eventually(lambda: "403" in reasons(client, "refused"), seconds=60), reasons(client, "refused")
        finally:
            plane.stop_one("kube-scheduler")
    client.delete("/api/v1/namespaces/ml/pods/refused?gracePeriodSeconds=0")
    with extender(log) as url:
        plane.start_scheduler(scheduler_configuration(url))
        try:
            ask(client, "ml", "part", core=30, memory=10)
            ask(client, "ml", "whole", core=100)
            assert placement_of(client, "ml", "part", seconds=60)[0] == "gpu1"
            placement_of(client, "ml", "whole", seconds=60)
        finally:
            plane.stop_one("kube-scheduler")


def reasons(client: Client, name: str) -> str:
    """Return why kube-scheduler does not place the pod."""
    found = pod(client, "ml", name).get("status", {}).get("conditions", [])
    events = [json.loads(bytes(raw)) for raw in client.list("/api/v1/namespaces/ml/events")[0]]
    return " ".join([str(one.get("message")) for one in [*found, *events]])
