"""docs/kubernetes-first-hour.md, walked: every command, in order, with its way back, on a real control plane."""

import base64
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db import connection

from apps.clusters.models import Cluster, PodClaim
from apps.quotas.models import Tenant
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree, gpu_uuid
from tests.clusters import hami_cluster as hami
from tests.clusters.admission.serving import serve
from tests.clusters.cluster_objects import CHOSEN, INDEX
from tests.clusters.control_plane import ControlPlane
from tests.clusters.first_hour import Walk
from tests.clusters.test_commands import command
from tests.helm import OUTSIDE, needs_helm
from tests.platform import ROOT
from tests.ports import free_port
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(600), needs_helm]
HOOKS = "/apis/admissionregistration.k8s.io/v1"
SPACE = "/api/v1/namespaces/research"
ROLLED = "vector-add"
Json = dict[str, Any]


class Site:
    """A cluster with HAMi and two of its pods, what of gpucloud would run in it, and the page's walk."""

    def __init__(self, plane: ControlPlane, cast: Cast, walk: Walk, hook: str, authority: Path) -> None:
        self.plane, self.client, self.cast, self.walk = plane, plane.client(), cast, walk
        self.hook, self.authority = hook, authority
        self.machine: Machine | None = None

    def pod(self, name: str) -> Json:
        return self.client.get(f"{SPACE}/pods/{name}")

    def running(self) -> list[Json]:
        """Return the namespace's running pods that nobody deletes."""
        items = [json.loads(bytes(raw)) for raw in self.client.list(f"{SPACE}/pods")[0]]
        alive = [one for one in items if "deletionTimestamp" not in one["metadata"]]
        return [one for one in alive if one["status"]["phase"] == "Running" and "nodeName" in one["spec"]]

    def report(self) -> None:
        """Do what the node's agent does: be there, and apply what is wanted."""
        try:
            if self.machine is not None:
                self.machine.stay_online()
                self.machine.obey()
        finally:
            connection.close()

    def lead_to_us(self) -> None:
        """Let the API server call the webhooks here: the chart's Service has no pods without kubelets."""
        bundle = (self.authority / "ca-bundle.crt").read_bytes()
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            made = self.client.get(f"{HOOKS}/{kind}/gpucloud")
            for one in made["webhooks"]:
                path = one["clientConfig"]["service"]["path"]
                one["clientConfig"] = {"url": self.hook + path, "caBundle": base64.b64encode(bundle).decode()}
            self.client.patch(f"{HOOKS}/{kind}/gpucloud", {"webhooks": made["webhooks"]})


@pytest.fixture
def site(real_cast: Cast, tmp_path: Path, settings: Any) -> Iterator[Site]:
    """Start the control plane, HAMi, and our webhooks; nothing of gpucloud is in the cluster."""
    settings.ADMISSION_TRANSLATE = ["HAMi"]
    tls = tmp_path / "tls"
    call_command("webhook_certificates", directory=tls, url="https://127.0.0.1:1", stdout=StringIO(), stderr=StringIO())
    controllers = ("deployment-controller", "replicaset-controller")
    with (
        ControlPlane(tmp_path / "kube", controllers=controllers) as plane,
        serve(tls) as ours,
        serve(tls, hami.webhook) as theirs,
    ):
        walk = Walk(tmp_path / "home", KUBECONFIG=str(tmp_path / "home/kubeconfig"))
        (walk.directory / "kubeconfig").write_text(plane.kubeconfig())
        (walk.directory / "deploy").symlink_to(ROOT / "deploy")
        values = dict(one.split("=", 1) for one in OUTSIDE)
        nested = {"database": {"url": values["database.url"]}, "redis": {"url": values["redis.url"]}}
        (walk.directory / "values.yaml").write_text(yaml.safe_dump(nested))
        hami.write_chart(walk.directory, theirs, (tls / "ca-bundle.crt").read_bytes())
        made = Site(plane, real_cast, walk, ours, tls)
        client = made.client
        client.post("/api/v1/namespaces", {"metadata": {"name": "research"}})
        hami.add_node(client, "gpu1", gpus=2)
        played = hami.Played(client, "gpu1", gpu_uuid("gpu1", 0), besides=made.report)
        played.start()
        yield made
        played.stop()
        assert played.failures == []


def live_claims() -> dict[str, tuple[int, int]]:
    """Return core and memory of each pod's live claim; the Deployment's pod by the name of the Deployment."""
    rows = PodClaim.objects.live().filter(claim__isnull=False).select_related("claim")
    return {
        ROLLED if row.pod.startswith(ROLLED) else row.pod: (row.claim.core_request, row.claim.memory_mib)
        for row in rows
        if row.claim is not None
    }


def test_the_page_is_walked_with_each_way_back(site: Site, live_server: Any, tmp_path: Path) -> None:
    walk, client, cast = site.walk, site.client, site.cast
    walk.set(GPUCLOUD_URL=live_server.url, GPUCLOUD_TOKEN=str(cast.olga.token))
    walk.shell("helm install hami hami-charts/hami -n kube-system")
    client.post(f"{SPACE}/pods", hami.pod_of("gpu-pod", gpu="1", gpumem="3000", gpucores="30"))
    client.post(
        f"/apis/apps/v1{SPACE.removeprefix('/api/v1')}/deployments", hami.deployment_of(ROLLED, gpu="1", gpumem="3000")
    )
    assert eventually(lambda: len(site.running()) == 2, seconds=60)
    assert all(hami.is_hamis(one) for one in site.running())

    walk.do(1)
    before = hami.identities(client, "research")
    walk.do(2)
    walk.back(2)
    assert not Cluster.objects.exists()
    walk.do(2)

    with command("clusters", tmp_path / "clusters.log"):
        walk_on(site, before, tmp_path)
    assert walk.left_out() == []


def walk_on(site: Site, before: dict[str, tuple[str, str]], logs: Path) -> None:
    """Walk from step 3 on, while `manage.py clusters` runs."""
    walk, client = site.walk, site.client
    walk.back(3)
    walk.shell("kubectl label node gpu1 nvidia-device-enable=enable")
    site.machine = Machine("gpu1", site.cast.pool, gpus=2)
    hami.offer_ours(client, "gpu1", gpus=2, units=96)
    walk.do(3)

    walk.do(4)
    assert (Claim.objects.count(), Tenant.objects.filter(slug="research").exists()) == (0, False)

    walk.do(5)
    taken = {"gpu-pod": (30, 3000), ROLLED: (1, 3000)}
    assert eventually(lambda: live_claims() == taken, seconds=30), live_claims()
    assert_books_agree()
    assert hami.identities(client, "research") == before
    walk.back(5)
    assert not Claim.objects.live().exists()
    assert hami.identities(client, "research") == before, "a way back restarts nothing"
    walk.do(2, starting="gpucloud cluster create")
    walk.do(5, starting="echo")
    walk.do(5, starting="kubectl")
    assert eventually(lambda: live_claims() == taken, seconds=30), live_claims()
    assert hami.identities(client, "research") == before

    port = free_port()
    walk.do(6)
    config = yaml.safe_load((walk.directory / "scheduler.yaml").read_text())
    assert config["extenders"][0]["urlPrefix"].startswith("http://10.96.0.40:3456/clusters/prod")
    config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}/clusters/prod/scheduler"
    with command("extender", logs / "extender.log", EXTENDER_PORT=str(port)):
        site.plane.start_scheduler(config)
        new_pods(site, before)


def new_pods(site: Site, before: dict[str, tuple[str, str]]) -> None:
    """Walk from step 7 on, while kube-scheduler asks the extender."""
    walk, client = site.walk, site.client
    (walk.directory / "new-pod.yaml").write_text(
        yaml.safe_dump(hami.pod_of("new-pod", gpu="1", gpumem="3000", gpucores="30"))
    )
    walk.do(7, starting="helm")
    site.lead_to_us()
    walk.do(7, starting="kubectl")
    assert eventually(lambda: "new-pod" in live_claims(), seconds=60), live_claims()
    placed = site.pod("new-pod")["metadata"]["annotations"]
    assert (placed[CHOSEN], placed[INDEX]) == ("gpu1", "0"), "30 and 1 percent are on it, so it is the fullest"
    walk.back(7)
    assert eventually(lambda: "new-pod" not in live_claims(), seconds=60), live_claims()
    walk.shell("kubectl apply -n research -f new-pod.yaml")
    assert eventually(lambda: hami.is_hamis(site.pod("new-pod")), seconds=30), "it is HAMi's again"
    walk.shell("kubectl delete pod new-pod -n research")
    assert hami.identities(client, "research") == before
    walk.do(7, starting="helm")
    site.lead_to_us()

    walk.do(8)
    assert eventually(lambda: len(site.running()) == 2, seconds=30)
    [rolled] = [one for one in site.running() if one["metadata"]["name"].startswith(ROLLED)]
    assert not hami.is_hamis(rolled)
    assert rolled["metadata"]["annotations"][CHOSEN] == "gpu1"
    assert hami.identities(client, "research")["gpu-pod"] == before["gpu-pod"]
    walk.back(8)
    assert eventually(lambda: sum(hami.is_hamis(one) for one in site.running()) == 2, seconds=60)
    walk.do(7, starting="helm")
    site.lead_to_us()
    walk.do(8)

    walk.shell("kubectl delete pod gpu-pod -n research")
    assert walk.do(9, starting="kubectl").strip() == ""
    walk.do(9, starting="helm")
    walk.back(9)
    assert eventually(lambda: len(live_claims()) == 1, seconds=60), live_claims()
    assert_books_agree()
