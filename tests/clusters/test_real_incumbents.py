"""A real kube-scheduler that is configured for gpushare's extender, or for HAMi's, with ours in its place."""

import httpx
import pytest

from apps.clusters.services import scheduler_configuration
from tests.clusters.cluster_objects import CORE, MEMORY, add_namespace, add_node, placement_of
from tests.clusters.control_plane import ControlPlane
from tests.clusters.extenders import Listening

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("name", "path"), [("gpushare", "/gpushare-scheduler"), ("hami", "")])
def test_its_paths_place_and_bind_pods_that_were_rewritten(real_plane: ControlPlane, name: str, path: str) -> None:
    client = real_plane.client()
    add_namespace(client, name)
    add_node(client, f"{name}-a", gpus=2, units=96, lab=name)
    resources = [{"name": one, "ignoredByScheduler": False} for one in (CORE, MEMORY)]
    verbs = {"filterVerb": "filter", "bindVerb": "bind", "nodeCacheCapable": True, "managedResources": resources}
    container = {"name": "main", "image": "cuda", "resources": {"limits": {CORE: "30", MEMORY: "8"}}}
    spec = {"schedulerName": name, "nodeSelector": {"lab": name}, "containers": [container]}
    with Listening() as listener:
        listener.begin("kube", client)
        entry = {"urlPrefix": listener.url + path, **verbs}
        real_plane.start_scheduler(scheduler_configuration.configuration(entry, scheduler_name=name))
        try:
            client.post(f"/api/v1/namespaces/{name}/pods", {"metadata": {"name": "train"}, "spec": spec})
            assert placement_of(client, name, "train", seconds=60) == (f"{name}-a", "0")
        finally:
            real_plane.stop_one("kube-scheduler")
        [node] = httpx.get(f"{listener.url}/gpushare-scheduler/inspect/{name}-a").json()["nodes"]
    assert node["devs"][0]["pods"] == [{"name": "train", "namespace": name, "usedGPU": 2}]
