"""A populated cluster becomes tenants, quotas and assignments; a repeat changes nothing, and so does a rehearsal."""

from dataclasses import replace
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from apps.clusters.importing import taking
from apps.clusters.importing.plan import Plan, Snapshot, plan
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Gpu
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from tests.cast import Cast, Machine, assert_books_agree, give
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.importing.populated import UUID, gpu_manager_pod, gpushare_pod, hami_pod, populate, running
from tests.clusters.kubeconfigs import kubeconfig

pytestmark = pytest.mark.django_db


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create the machine gpu1, with the GPUs of the cluster's pods."""
    made = Machine("gpu1", cast.pool, gpus=2).stay_online()
    Gpu.objects.filter(node=made.node, index=0).update(uuid=UUID)
    return made


@pytest.fixture
def cluster(cast: Cast, machine: Machine) -> Cluster:
    return clusters.connect(principal=SYSTEM, name="prod", pool=cast.pool, kubeconfig=kubeconfig())


def take(cluster: Cluster, snapshot: Snapshot | Plan) -> taking.Report:
    made = snapshot if isinstance(snapshot, Plan) else plan(snapshot)
    return taking.take(principal=SYSTEM, cluster=cluster, plan=made)


def why(report: taking.Report) -> str:
    return "\n".join(f"{left.about}: {left.why}" for left in report.left)


def rows() -> dict[str, int]:
    models: list[Any] = [Tenant, ResourceQuota, Claim, Assignment, PodClaim]
    return {model.__name__: model.objects.count() for model in models}


def test_pods_of_all_four_hold_what_they_held_on_the_gpus_that_they_run_on(cluster: Cluster, machine: Machine) -> None:
    report = take(cluster, populate())
    assert report.left == []
    held = {
        row.pod: (
            row.claim.tenant.slug,
            row.claim.core_request,
            row.claim.core_limit,
            row.claim.memory_mib,
            row.gpu_indexes,
        )
        for row in PodClaim.objects.select_related("claim__tenant")
        if row.claim is not None
    }
    assert held == {
        "tc-0": ("red", 30, 30, 2048, [0]),
        "hami-0": ("green", 20, 20, 3000, [0]),
        "share-0": ("blue", 1, 100, 2048, [1]),
        "shp-0": ("blue", 25, 50, 1024, [0]),
    }
    assert Claim.objects.get(name="blue/shp-0").affinity == "near"
    assert Gpu.objects.get(uuid=UUID).core_used == 75
    assert_books_agree()
    machine.obey()
    assert set(Claim.objects.values_list("state", flat=True)) == {"active"}


def test_the_agent_is_told_which_container_each_share_is_for(cluster: Cluster) -> None:
    take(cluster, populate())
    assert Claim.objects.get(name="red/tc-0").pod == {
        "namespace": "red", "name": "tc-0", "container": "c1", "uid": "uid-tc-0",
    }  # fmt: skip


def test_twice_is_once(cluster: Cluster) -> None:
    take(cluster, populate())
    before = rows()
    report = take(cluster, populate())
    assert rows() == before
    assert report.made == []
    assert any("holds what it has already" in text for text in report.kept)


def test_a_quota_that_is_there_is_kept_and_told_of(cluster: Cluster, cast: Cast) -> None:
    bindings.bind(principal=SYSTEM, cluster=cluster, tenant=cast.acme, namespace="red")
    give(cast.acme, core_percent=70, memory_mib=None)
    before = list(ResourceQuota.objects.filter(tenant=cast.acme).values_list("resource", "hard"))
    report = take(cluster, populate())
    assert list(ResourceQuota.objects.filter(tenant=cast.acme).values_list("resource", "hard")) == before
    assert any(text.startswith("acme: core_percent is") for text in report.kept)
    assert Claim.objects.get(name="red/tc-0").tenant == cast.acme


def test_a_pod_for_which_there_is_no_room_is_left_and_the_others_are_taken(cluster: Cluster) -> None:
    crowd = [gpu_manager_pod(f"tc-{number}") for number in range(4)]
    report = take(cluster, Snapshot(pods=crowd))
    assert PodClaim.objects.count() == 3
    assert "Pod red/tc-3: Its GPUs have no room" in why(report)
    assert_books_agree()


def test_a_pod_above_its_quota_is_left(cluster: Cluster) -> None:
    whole = replace(populate(), pods=[gpu_manager_pod(f"tc-{number}", index=str(number % 2)) for number in range(4)])
    report = take(cluster, whole)
    assert "Pod red/tc-3" in why(report)
    assert ResourceQuota.objects.get(tenant__slug="red", resource="core_percent").used == 90


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (gpu_manager_pod(node="gpu9"), "No node of pool"),
        (gpu_manager_pod(index="7"), "has no GPU 7"),
        (hami_pod(uuid="GPU-unknown"), "has no GPU-unknown"),
    ],
)
def test_a_pod_on_a_gpu_that_nobody_knows_is_left(cluster: Cluster, odd: dict[str, Any], words: str) -> None:
    report = take(cluster, Snapshot(pods=[odd, gpushare_pod()]))
    assert words in why(report)
    assert list(PodClaim.objects.values_list("pod", flat=True)) == ["share-0"]


def test_of_a_pod_with_two_containers_both_are_taken_or_none(cluster: Cluster) -> None:
    said = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-gpu-idx-1": "9"}
    asked = running(pod(container_with(core=10, memory=4), container_with(core=10, memory=4), annotations=said))
    assert "has no GPU 9" in why(take(cluster, Snapshot(pods=[asked])))
    assert Claim.objects.count() == 0
    asked["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-1"] = "1"
    take(cluster, Snapshot(pods=[asked]))
    assert PodClaim.objects.count() == 2


def test_a_machine_without_an_agent_takes_nothing(cluster: Cluster, machine: Machine) -> None:
    machine.node.change(last_seen_at=None)
    assert "not ready" in why(take(cluster, Snapshot(pods=[gpu_manager_pod()])))


def test_who_is_bound_by_labels_pays(cast: Cast, cluster: Cluster) -> None:
    bindings.bind(principal=SYSTEM, cluster=cluster, selector={"team": "vision"}, tenant=cast.acme)
    give(cast.acme, core_percent=None, memory_mib=None)
    labels = {"red": {"team": "vision"}, "blue": {"team": "speech"}}
    report = take(cluster, Snapshot(pods=[gpu_manager_pod(), gpushare_pod()], labels=labels))
    assert "Namespace red is acme's." in report.kept
    assert dict(Claim.objects.values_list("name", "tenant__slug")) == {"red/tc-0": "acme", "blue/share-0": "blue"}


@pytest.mark.parametrize("unit", ["0", "-5", "1025"])
def test_a_unit_that_nobody_counts_in_is_refused(cluster: Cluster, unit: str) -> None:
    with pytest.raises(CommandError, match="give 1 to 1024"):
        call_command("import_cluster", cluster.name, f"--gpushare-unit-mib={unit}")
