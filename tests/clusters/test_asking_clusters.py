"""Operators' requests to a cluster: connection, quotas, import, configurations."""

from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters, connections, watchers
from apps.quotas.models import Tenant
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, give
from tests.clusters.answering import Answering, namespace, quota, running
from tests.clusters.kubeconfigs import kubeconfig
from tests.helm import OUTSIDE, named, needs_helm, rendered


@pytest.fixture
def cluster(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Create a cluster with a namespace of acme's, whose API server answers."""
    monkeypatch.setattr(connections, "Client", Answering)
    for name, empty in (("lists", {}), ("denied", set()), ("asked", [])):
        monkeypatch.setattr(Answering, name, empty)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig(), sync_quotas=True)
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def test_a_connection_is_tried_and_missing_rights_are_named(cast: Cast, cluster: Cluster) -> None:
    Answering.denied.add("resourcequotas")
    said = cast.olga.get("clusters/kube/connection/").body
    assert (said["reached"], said["kubernetes_version"], said["reason"]) == (True, "v1.36.2", "")
    assert {gap["resource"] for gap in said["missing"]} == {"resourcequotas"}
    assert {gap["verb"] for gap in said["missing"]} == {"get", "list", "watch", "create", "patch", "update"}
    assert said["missing"][0]["purpose"] == "to write tenants' quotas"


@needs_helm
def test_the_rights_that_are_asked_for_are_those_that_the_chart_gives(cast: Cast, cluster: Cluster) -> None:
    connections.attempt(principal=SYSTEM, cluster=cluster)
    asked = {(one["group"], one["resource"], one["subresource"], one["verb"], one["name"]) for one in Answering.asked}
    role = named(rendered(*OUTSIDE), "ClusterRole", "gpucloud-cluster")
    given = {
        (group, *(resource.split("/", 1) if "/" in resource else (resource, "")), verb, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    assert asked == given


def test_a_cluster_that_does_not_answer_is_said_so(cast: Cast) -> None:
    clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    said = cast.olga.get("clusters/kube/connection/").body
    assert (said["reached"], said["kubernetes_version"]) == (False, "")
    assert "does not answer" in said["reason"]
    assert "does not answer" in cast.olga.get("clusters/kube/quotas/").body["reason"]


def test_quotas_there_are_held_against_the_tenants(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=200, memory_mib=2560)
    Answering.lists["namespaces"] = [namespace("ml"), namespace("nobodys")]
    limits = {"limits.tencent.com/vcuda-core": "7"}
    Answering.lists["resourcequotas"] = [
        quota("ml", "gpucloud", core="200", memory="99"), quota("ml", "mine", **limits), quota("nobodys", "gpucloud"),
    ]  # fmt: skip
    said = cast.olga.get("clusters/kube/quotas/").body
    assert said["synced"] is True
    amounts = {one["resource"]: (one["wanted"], one["there"], one["in_step"]) for one in said["amounts"]}
    assert amounts == {
        "requests.tencent.com/vcuda-core": (200, 200, True),
        "requests.tencent.com/vcuda-memory": (10, 99, False),
        "limits.nvidia.com/gpucores": (200, None, False),
        "limits.nvidia.com/gpumem": (2560, None, False),
    }
    assert said["never_counted"] == [{"namespace": "ml", "quota": "mine", "resource": "limits.tencent.com/vcuda-core"}]


def test_an_import_is_rehearsed_and_then_done_and_may_be_repeated(cast: Cast, cluster: Cluster) -> None:
    Machine("gpu1", cast.pool)
    Answering.lists["pods"] = [running("train"), running("lost", where="other", on="elsewhere")]
    told = cast.olga.post("clusters/kube/import/?dry_run=true", {}).body
    assert told["dry_run"] is True
    assert any(line.startswith("ml/train (gpu-manager): container main holds 30 percent") for line in told["made"])
    assert [left["about"] for left in told["left"]] == ["Pod other/lost"]
    assert not Claim.objects.exists()
    assert not Tenant.objects.filter(slug="other").exists()
    done = cast.olga.post("clusters/kube/import/", {"gpushare_unit_mib": 1}).body
    assert {**done, "dry_run": True} == told
    assert PodClaim.objects.get(pod="train").claim is not None
    assert "ml/train holds what it has already." in cast.olga.post("clusters/kube/import/", {}).body["kept"]


def test_a_cluster_that_refuses_to_be_read_is_a_conflict(
    cast: Cast, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Answering, path: str, **query: str) -> Any:
        raise Refused(403, "Forbidden", "pods is forbidden")

    monkeypatch.setattr(Answering, "list", refuse)
    answer = cast.olga.post("clusters/kube/import/", {})
    assert (answer.status, answer.code) == (409, "cluster-refused")
    assert "pods is forbidden" in answer.body["detail"]


@pytest.mark.parametrize("path", ["clusters/kube/connection/", "clusters/kube/quotas/", "scheduler-configuration/"])
def test_only_operators_ask(cast: Cast, cluster: Cluster, path: str) -> None:
    assert cast.anna.get(path).status == 403


def test_kube_schedulers_configuration_names_this_installation(cast: Cast, cluster: Cluster) -> None:
    [entry] = cast.olga.get("scheduler-configuration/").body["configuration"]["extenders"]
    # The first cluster is named, too: a second one may be connected later.
    assert (entry["urlPrefix"], entry["enableHTTPS"]) == ("http://127.0.0.1:3456/clusters/kube/scheduler", False)
    query = (
        "?form=policy&url=https://gpu:9&cluster=kube&everything=true&ca_file=/ca.crt&cert_file=/c.crt&key_file=/c.key"
    )
    made = cast.olga.get("scheduler-configuration/" + query).body["configuration"]
    [entry] = made["extenders"]
    assert (made["kind"], entry["urlPrefix"]) == ("Policy", "https://gpu:9/clusters/kube/scheduler")
    assert entry["tlsConfig"] == {"caFile": "/ca.crt", "certFile": "/c.crt", "keyFile": "/c.key"}
    assert entry["bindVerb"] == "bind"


@pytest.mark.parametrize(
    "query", ["form=other", "url=ftp://x", "cluster=none", "by_name=maybe", "colour=red", "url=https://x/path"]
)
def test_a_question_that_makes_no_sense_is_refused(cast: Cast, cluster: Cluster, query: str) -> None:
    answer = cast.olga.get(f"scheduler-configuration/?{query}")
    assert (answer.status, answer.code) == (400, "invalid-fields")


def test_an_old_configuration_is_given_in_its_other_form(cast: Cast) -> None:
    old = {
        "kind": "Policy",
        "predicates": [{"name": "x"}],
        "extenders": [{"urlPrefix": "http://a", "httpTimeout": 10**9}],
    }
    said = cast.olga.post("scheduler-configuration/", {"configuration": old}).body
    assert (said["configuration"]["kind"], said["left_out"]) == ("KubeSchedulerConfiguration", ["predicates"])
    assert said["configuration"]["extenders"] == [{"urlPrefix": "http://a", "httpTimeout": "1s"}]
    for wrong in ({}, {"kind": "Policy", "extenders": [{"httpTimeout": "9" * 400 + "s"}]}):
        assert cast.olga.post("scheduler-configuration/", {"configuration": wrong}).status == 422
    assert cast.olga.post("scheduler-configuration/", {"configuration": [old]}).status == 400


def test_webhook_configurations_trust_the_listeners_authority(cast: Cast, tmp_path: Path, settings: Any) -> None:
    assert "webhook_certificates" in cast.olga.get("webhook-configuration/").body["reason"]
    (tmp_path / "ca-bundle.crt").write_text("the authority")
    settings.EXTENDER_CERTIFICATE = str(tmp_path / "tls.crt")
    said = cast.olga.get("webhook-configuration/?service=gpucloud/webhooks").body
    assert [one["kind"] for one in said["configurations"]] == [
        "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
    ]  # fmt: skip
    client = said["configurations"][0]["webhooks"][0]["clientConfig"]
    assert (client["service"]["name"], client["caBundle"]) == ("webhooks", "dGhlIGF1dGhvcml0eQ==")
    assert cast.olga.get("webhook-configuration/?url=http://x").code == "not-reachable"
    [hook, *_] = cast.olga.get("webhook-configuration/").body["configurations"]
    assert hook["webhooks"][0]["clientConfig"]["url"] == "https://127.0.0.1:3456/admission/mutate"
    assert len(hook["webhooks"]) == 1
    [hook, *_] = cast.olga.get("webhook-configuration/?hide_gpus=true").body["configurations"]
    assert hook["webhooks"][1]["clientConfig"]["url"] == "https://127.0.0.1:3456/admission/hide"


@pytest.mark.django_db(transaction=True)
def test_whether_anybody_watches_is_known_by_the_lock() -> None:
    assert not watchers.is_led()
    assert watchers.lead()
    assert watchers.is_led()
    connection.close()
    assert not watchers.is_led()
