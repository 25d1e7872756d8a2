"""The chart's probe of processes without a port, and the end of one that still starts, on a real kubelet."""

import pytest

from apps.clusters.kube.client import Refused
from tests.helm import OUTSIDE, named, needs_helm, rendered
from tests.kubelet.chain import Chain, container, container_id, status_of
from tests.kubelet.image import SOURCES
from tests.kubelet.reading import Json
from tests.kubelet.server_side import NAMESPACE

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600), needs_helm]
MOVES = "while :; do touch $HEARTBEAT_PATH; sleep 1; done"
# Its last move was long ago, once it has begun.
HANGS = "touch $HEARTBEAT_PATH; sleep 5; touch -d '1 hour ago' $HEARTBEAT_PATH; sleep infinity"


def of_the_chart() -> Json:
    """Return the pod of the scheduler."""
    spec: Json = named(rendered(*OUTSIDE), "Deployment", "gpucloud-scheduler")["spec"]["template"]["spec"]
    return spec


def process(name: str, script: str) -> Json:
    """Return a container with the scheduler's probes, which ask each second here."""
    [one] = of_the_chart()["containers"]
    probes = {kind: {**one[kind], "periodSeconds": 1} for kind in ("startupProbe", "livenessProbe")}
    path = named(rendered(*OUTSIDE), "ConfigMap", "gpucloud")["data"]["HEARTBEAT_PATH"]
    more = {"env": [{"name": "HEARTBEAT_PATH", "value": f"{path}-{name}"}], "workingDir": SOURCES}
    return {**container(name, "sh", "-c", script), **probes, **more}


def test_a_loop_that_hangs_is_started_again_and_one_that_moves_is_not(chain: Chain) -> None:
    volumes = [{"name": "tmp", "emptyDir": {}}]
    mounts = {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}  # noqa: S108 - the container's own
    both = [process("moves", MOVES) | mounts, process("hangs", HANGS) | mounts]
    chain.create_pod({"metadata": {"name": "alive"}, "spec": {"containers": both, "volumes": volumes}})
    chain.running("alive")

    def restarts(name: str) -> int:
        return int(status_of(chain.pod("alive"), name)["restartCount"])

    chain.wait(lambda: restarts("hangs") >= 2, what="two restarts of what hangs", pod="alive")
    assert restarts("moves") == 0
    assert any("Liveness probe failed" in one for one in chain.events("alive"))


def test_a_process_without_a_handler_ends_by_sigterm(chain: Chain) -> None:
    """Control: as the first process of its namespace, as a Python that still starts, it lives until it is killed."""
    spec = {"containers": [container("main", "sh", "-c", "sleep 1000; true")], "terminationGracePeriodSeconds": 600}
    shared = {"shareProcessNamespace": of_the_chart()["shareProcessNamespace"]}
    chain.create_pod({"metadata": {"name": "shared"}, "spec": {**spec, **shared}})
    chain.create_pod({"metadata": {"name": "alone"}, "spec": spec})
    for name in ("shared", "alone"):
        chain.running(name)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for name in ("alone", "shared"):
        chain.client.delete(f"{path}/{name}")

    def is_gone(name: str) -> bool:
        try:
            chain.pod(name)
        except Refused as error:
            return error.status == 404
        return False

    try:
        chain.wait(lambda: is_gone("shared"), what="the end of the pod that shares its namespace", pod="shared")
        assert not is_gone("alone")
    finally:
        chain.node.kill(container_id(chain.pod("alone")))
