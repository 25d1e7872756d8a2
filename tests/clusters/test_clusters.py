"""Connection of clusters and binding of their namespaces: credentials stay sealed, and no local file is read."""

import datetime as dt
import json

import pytest

from apps.clusters.core.gpu_admission import CORE
from apps.clusters.models import Cluster, NamespaceBinding, SharePod
from apps.clusters.services import bindings, clusters, quota_sync, sealing
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.services.claims import lifecycle
from tests.cast import Cast, Machine, ask, give
from tests.clusters.kubeconfigs import kubeconfig


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node of four GPUs."""
    return Machine("gpu1", cast.pool)


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    return clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())


def test_credentials_are_kept_sealed_and_read_again(cluster: Cluster) -> None:
    row = Cluster.objects.get()
    assert row.server == "https://127.0.0.1:1"
    assert "a-secret-token" not in json.dumps([str(value) for value in Cluster.objects.values_list()[0]])
    config = clusters.kubeconfig_of(row)
    assert config is not None
    assert config["users"][0]["user"] == {"token": "a-secret-token"}


def test_credentials_are_nowhere_shown(cast: Cast) -> None:
    body = {"name": "kube", "pool": "default", "kubeconfig": kubeconfig()}
    answer = cast.olga.post("clusters/", body)
    assert answer.status == 201
    read = cast.olga.get("clusters/kube/")
    audited = str(list(AuditEvent.objects.values_list("before", "after")))
    assert "a-secret-token" not in answer.raw.decode() + read.raw.decode() + audited
    assert "kubeconfig" not in read.body


def test_anothers_seal_does_not_open(cluster: Cluster, cast: Cast) -> None:
    other = clusters.connect(principal=SYSTEM, name="other", pool=cast.pool, kubeconfig=kubeconfig())
    assert cluster.sealed_kubeconfig is not None
    with pytest.raises(sealing.SealBroken):
        sealing.unseal(other.uid, cluster.sealed_kubeconfig)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "a: [",
        kubeconfig(user={"exec": {"command": "/bin/sh"}}),
        kubeconfig(user={"tokenFile": "/etc/shadow"}),
        kubeconfig(user={"client-key": "/etc/ssl/private/key.pem"}),
        kubeconfig(user={"auth-provider": {"name": "gcp"}}),
        kubeconfig(cluster={"certificate-authority": "/etc/ssl/ca.pem"}),
        kubeconfig(server="http://127.0.0.1:8080"),
        kubeconfig(server="https://[x"),
        kubeconfig(server="https://"),
        kubeconfig(server="https://" + "x" * 2000),
        kubeconfig(user={"token": dt.date(2026, 1, 1)}),
        kubeconfig(user={"client-certificate-data": "not base64!"}),
        "[" * 5000,
        "a: 2026-13-45",
        kubeconfig().replace("current-context: admin@kube", "current-context: another"),
    ],
)
def test_a_kubeconfig_that_names_files_or_programs_is_refused(cast: Cast, text: str) -> None:
    answer = cast.olga.post("clusters/", {"name": "kube", "pool": "default", "kubeconfig": text})
    assert answer.status in (400, 422)
    assert not Cluster.objects.exists()


@pytest.mark.parametrize("more", [{}, {"kubeconfig": kubeconfig(), "in_cluster": True}])
def test_a_cluster_is_reached_in_one_way(cast: Cast, more: dict[str, object]) -> None:
    assert cast.olga.post("clusters/", {"name": "kube", "pool": "default", **more}).code == "reached-in-two-ways"


def test_a_name_wins_over_labels_and_the_oldest_labels_over_later_ones(cluster: Cluster, cast: Cast) -> None:
    everything = bindings.bind(principal=SYSTEM, cluster=cluster, selector={}, tenant=cast.globex)
    bindings.bind(principal=SYSTEM, cluster=cluster, selector={"team": "a"}, tenant=cast.acme)
    rows = list(NamespaceBinding.objects.all())
    assert bindings.tenant_of(rows, "ml", {"team": "a"}) == cast.globex
    everything.delete()
    rows = list(NamespaceBinding.objects.all())
    assert bindings.tenant_of(rows, "ml", {"team": "a"}) == cast.acme
    assert bindings.tenant_of(rows, "ml", {}) is None
    bindings.bind(principal=SYSTEM, cluster=cluster, namespace="ml", tenant=cast.globex)
    assert bindings.tenant_of(list(NamespaceBinding.objects.all()), "ml", {"team": "a"}) == cast.globex


def test_a_namespace_is_bound_once(cluster: Cluster, cast: Cast) -> None:
    body = {"namespace": "ml", "tenant": "acme"}
    assert cast.olga.post("clusters/kube/namespaces/", body).status == 201
    assert cast.olga.post("clusters/kube/namespaces/", body).code == "name-taken"
    assert cast.olga.post("clusters/kube/namespaces/", {"tenant": "acme"}).code == "name-or-labels"


def test_a_cluster_is_forgotten_with_its_bindings(cluster: Cluster, cast: Cast) -> None:
    bindings.bind(principal=SYSTEM, cluster=cluster, namespace="ml", tenant=cast.acme)
    assert cast.olga.delete("clusters/kube/").status == 204
    assert not NamespaceBinding.objects.exists()


def test_a_cluster_whose_sharepods_hold_claims_is_not_forgotten(cluster: Cluster, cast: Cast, machine: Machine) -> None:
    give(cast.acme, core_percent=50, memory_mib=None)
    claim = ask(cast, core_request=10)
    SharePod.objects.create(cluster=cluster, uid="1", namespace="ml", name="shared", claim=claim)
    refused = cast.olga.delete("clusters/kube/")
    assert refused.code == "in-use"
    assert refused.body["claims"] == 1
    lifecycle.release_claim(principal=SYSTEM, claim=claim)
    assert cast.olga.delete("clusters/kube/").status == 204


def test_what_a_sharepod_holds_is_its_namespaces_own(cluster: Cluster, cast: Cast, machine: Machine) -> None:
    give(cast.acme, core_percent=50, memory_mib=None)
    assert quota_sync.hard_limits(cluster, cast.acme, "ml")[f"requests.{CORE}"] == "50"
    claim = ask(cast, core_request=50)
    assert quota_sync.hard_limits(cluster, cast.acme, "ml")[f"requests.{CORE}"] == "0"
    SharePod.objects.create(cluster=cluster, uid="1", namespace="ml", name="shared", claim=claim)
    assert quota_sync.hard_limits(cluster, cast.acme, "ml")[f"requests.{CORE}"] == "50"
    assert quota_sync.hard_limits(cluster, cast.acme, "other")[f"requests.{CORE}"] == "0"
