"""Clusters on operators' pages: connecting, testing, binding, importing, removing."""

import json
from typing import Any

import pytest

from apps.clusters.models import Cluster, NamespaceBinding
from apps.clusters.services import bindings, clusters, connections
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give
from tests.clusters.answering import Answering, namespace, quota, running
from tests.clusters.kubeconfigs import kubeconfig
from tests.pages.conftest import SignIn

HTMX = {"HX-Request": "true"}


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


@pytest.fixture
def cluster(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Create a cluster with a namespace of acme's, whose API server answers."""
    monkeypatch.setattr(connections, "Client", Answering)
    for name, empty in (("lists", {}), ("denied", set()), ("asked", [])):
        monkeypatch.setattr(Answering, name, empty)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def pages(cluster: Cluster) -> list[str]:
    key = cluster.bindings.get().pk
    below = ["", "connection/", "quotas/", "remove/", "import/", f"namespaces/{key}/", f"namespaces/{key}/tenant/"]
    return ["/clusters/", "/new-cluster/", "/integrations/", *(f"/clusters/kube/{path}" for path in below)]


def test_clusters_are_the_operators(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    anna, olga = browser("anna"), browser("olga")
    for path in pages(cluster):
        assert anna.get(path).status_code == 403, path
        assert olga.get(path).status_code == 200, path
    for path in ("/new-cluster/", "/clusters/kube/", "/clusters/kube/remove/", "/clusters/kube/namespaces/"):
        assert anna.post(path, {}).status_code == 403, path
    for path in ("", "remove/", "import/", "connection/"):
        assert olga.get(f"/clusters/none/{path}").status_code == 404, path
    for path in ("/clusters/", "/integrations/"):
        assert f'href="{path}"' in text(olga.get("/nodes/")), path
        assert f'href="{path}"' not in text(anna.get("/search/?q=cl")), path
    assert Cluster.objects.count() == 1


def test_a_cluster_is_connected_and_its_credentials_are_not_shown(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    assert "Connect the first one" in text(olga.get("/clusters/"))
    sent = {"name": "prod", "pool": "default", "placement": "gpu-admission", "kubeconfig": kubeconfig()}
    assert "Say one way to reach the cluster" in text(olga.post("/new-cluster/", {**sent, "in_cluster": "on"}))
    answer = olga.post("/new-cluster/", sent)
    assert (answer.status_code, answer["Location"]) == (302, "/clusters/prod/")
    page = text(olga.get("/clusters/prod/"))
    assert "https://127.0.0.1:1" in page
    assert "a-secret-token" not in page
    assert "No process watches the clusters" in page
    assert "already" in text(olga.post("/new-cluster/", sent))


def test_its_settings_change_what_is_said_and_nothing_else(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga, sealed = browser("olga"), cluster.sealed_kubeconfig
    sent = {"enabled": "on", "placement": "gpucloud", "sync_quotas": "on", "kubeconfig": "", "version": 1}
    assert olga.post("/clusters/kube/", sent).status_code == 302
    cluster.refresh_from_db()
    assert (cluster.placement, cluster.sync_quotas, cluster.version) == ("gpucloud", True, 2)
    assert cluster.sealed_kubeconfig == sealed
    page = text(olga.post("/clusters/kube/", {**sent, "strict": "on"}))
    assert "Changed by user:olga" in page
    assert not Cluster.objects.get().strict
    refused = olga.post("/clusters/kube/", {**sent, "version": 2, "kubeconfig": "nonsense: ["})
    assert (refused.status_code, "not YAML" in text(refused)) == (422, True)


def test_a_connection_is_tested_from_its_page(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    part = text(olga.get("/clusters/kube/connection/", headers=HTMX))
    assert part.startswith('<div class="note tone-good">')
    Answering.denied.add("nodes")
    page = text(olga.get("/clusters/kube/connection/"))
    assert "watch nodes</b> to know its nodes" in page
    assert "<h1>kube</h1>" in page


def test_namespaces_are_bound_and_unbound_after_a_preview(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    sent = {"namespace": "", "labels": "team=vision, stage=prod", "tenant": "globex"}
    assert olga.post("/clusters/kube/namespaces/", sent).status_code == 302
    row = NamespaceBinding.objects.get(tenant=cast.globex)
    assert row.selector == {"team": "vision", "stage": "prod"}
    for wrong, words in (
        ({"labels": "team"}, "NAME=VALUE"), ({"labels": "", "namespace": ""}, "Say which namespaces"),
        ({"namespace": "ml", "labels": ""}, "bound already"), ({"namespace": "ML", "labels": ""}, "valid value"),
    ):  # fmt: skip
        refused = olga.post("/clusters/kube/namespaces/", {**sent, **wrong})
        assert (refused.status_code, words in text(refused)) == (422, True), wrong
    mine = cluster.bindings.get(namespace="ml")
    page = text(olga.get(f"/clusters/kube/namespaces/{mine.pk}/"))
    assert "No pod there is charged to acme" in page
    assert "globex’s where it matches namespaces with stage=prod, team=vision" in page
    assert cluster.bindings.count() == 2
    assert olga.post(f"/clusters/kube/namespaces/{mine.pk}/").status_code == 302
    assert not cluster.bindings.filter(namespace="ml").exists()
    assert AuditEvent.objects.filter(action="namespace.unbind").exists()


def test_what_runs_is_taken_over_after_a_table_of_it(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    Machine("gpu1", cast.pool)
    Answering.lists["pods"] = [running("train"), running("lost", on="elsewhere")]
    page = text(olga.post("/clusters/kube/import/", {"gpushare_unit_mib": "1024", "act": "rehearse"}))
    assert "ml/train (gpu-manager): container main holds 30 percent" in page
    assert "No node of pool default is elsewhere" in page
    assert "Would be made" in page
    assert not Claim.objects.exists()
    page = text(olga.post("/clusters/kube/import/", {"gpushare_unit_mib": "1024", "act": "take"}))
    assert 'data-state="made"' in page
    claim = Claim.objects.get()
    page = text(olga.get("/clusters/kube/", headers=HTMX))
    assert f"/claims/{claim.uid}/" in page
    assert "train <span" in page
    assert "pods of it hold 1 claim." in text(olga.get("/clusters/kube/remove/"))


def test_drift_of_quotas_is_shown_beside_what_is_wanted(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    give(cast.acme, core_percent=200)
    Answering.lists["namespaces"] = [namespace("ml")]
    Answering.lists["resourcequotas"] = [quota("ml", "gpucloud", core="300")]
    page = text(browser("olga").get("/clusters/kube/quotas/", headers=HTMX))
    assert '<td class="num">200</td> <td class="num">300</td>' in page
    assert 'data-state="drifted"' in page
    assert "“Write quotas” is off" in page


def test_a_cluster_is_removed_after_saying_what_goes(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    assert "1 binding of namespaces ends" in text(olga.get("/clusters/kube/remove/"))
    for version in ("9", "1" * 5000, "one"):
        assert olga.post("/clusters/kube/remove/", {"version": version}).status_code == 409
    assert Cluster.objects.exists()
    assert olga.post("/clusters/kube/remove/", {"version": 1}).status_code == 302
    assert not Cluster.objects.exists()


def test_configurations_are_shown_as_files_and_live_in_the_url(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    page = text(olga.get("/integrations/?url=https://gpu:9&everything=on&cluster=kube"))
    assert "urlPrefix: https://gpu:9/clusters/kube/scheduler" in page
    assert "bindVerb: bind" in page
    assert "manage.py webhook_certificates" in page
    assert olga.get("/integrations/?url=gpu").status_code == 422
    page = text(olga.post("/integrations/", {"document": "kind: Policy\nextenders: [{urlPrefix: http://a}]"}))
    assert "kind: KubeSchedulerConfiguration" in page
    for wrong in ("[1]", "a: [", "kind: Other"):
        assert olga.post("/integrations/", {"document": wrong}).status_code == 422, wrong


def test_clusters_and_the_tables_of_one_are_files(cast: Cast, cluster: Cluster, browser: SignIn) -> None:
    olga = browser("olga")
    (kube,) = json.loads(olga.get("/clusters/?format=json").content)
    assert (kube["name"], kube["pool"], kube["bound"]) == ("kube", "default", 1)
    (bound,) = json.loads(olga.get("/clusters/kube/?format=json&table=namespaces").content)
    assert bound == {"namespace": "ml", "selector": None, "tenant": "acme"}
    for table in ("pods", "sharepods", "resource-claims", "quotas"):
        answer = olga.get(f"/clusters/kube/?format=csv&table={table}")
        assert answer["Content-Disposition"] == f'attachment; filename="kube-{table}.csv"'
    assert "sealed" not in olga.get("/clusters/?format=csv").content.decode()
