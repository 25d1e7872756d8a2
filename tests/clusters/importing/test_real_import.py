"""Import of a populated cluster from its real API server: a dry run, the import, and a repeat."""

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from apps.clusters.models import PodClaim
from apps.clusters.sharepods.definition import definition
from apps.nodes.models import Gpu
from apps.quotas.models import ResourceQuota
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, assert_books_agree
from tests.clusters.control_plane import ControlPlane
from tests.clusters.importing.populated import UUID, gpu_manager_pod, gpushare_pod, hami_pod, kubeshare_pod, quota
from tests.clusters.real import Namespace, know

pytestmark = [pytest.mark.django_db, pytest.mark.serial, pytest.mark.control_plane]


@pytest.fixture
def populated(real_plane: ControlPlane, cast: Cast) -> Iterator[Namespace]:
    """Create pods of all four formats in one unbound namespace, with its limits."""
    know(real_plane.client(), definition())
    world = Namespace(real_plane, cast)
    world.cluster.bindings.all().delete()
    machine = Machine("gpu1", cast.pool, gpus=2)
    Gpu.objects.filter(node=machine.node, index=0).update(uuid=UUID)
    for running in (gpu_manager_pod(), hami_pod(), gpushare_pod(), kubeshare_pod()):
        world.make("pods", make_runnable(running))
    said = {"metadata": {"name": "shp-0"}, "spec": {}, "status": {"BoundDeviceID": UUID}}
    world.make("sharepods", {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", **said})
    world.make("resourcequotas", quota(world.name, **{"requests.tencent.com/vcuda-core": "90"}))
    # Our quota states the tenant's existing limit, and limits nothing new.
    world.make("resourcequotas", quota(world.name, "gpucloud", **{"requests.tencent.com/vcuda-core": "1"}))
    quota_map = {
        "metadata": {"name": "gpuquota"},
        "data": {"gpu_quota": json.dumps({world.name: {"quota": {"A10": 4}}})},
    }
    world.client.post("/api/v1/namespaces/kube-system/configmaps", quota_map)
    yield world
    world.client.delete("/api/v1/namespaces/kube-system/configmaps/gpuquota")
    for kind in ("sharepods", "pods"):
        world.client.delete(world.path(kind))


def make_runnable(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with the fields that the API server requires of every container."""
    for container in pod["spec"]["containers"]:
        container["image"] = "cuda:12"
    return pod


def run_import(world: Namespace, *options: str) -> dict[str, Any]:
    """Run the command; return its report."""
    out = StringIO()
    call_command("import_cluster", world.cluster.name, "--json", *options, stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def resource_versions(world: Namespace) -> list[str]:
    items, _ = world.client.list(world.path("pods"))
    return [json.loads(bytes(item))["metadata"]["resourceVersion"] for item in items]


def test_what_runs_is_taken_over_and_no_pod_is_touched(populated: Namespace) -> None:
    before = resource_versions(populated)
    rehearsed = run_import(populated)
    assert (Claim.objects.count(), rehearsed["taken"]) == (0, False)
    taken = run_import(populated, "--take")
    assert taken["made"] == rehearsed["made"]
    assert [left for left in taken["left"] if populated.name in left["about"]] == []
    held = dict(PodClaim.objects.values_list("pod", "claim__core_request"))
    assert held == {"tc-0": 30, "hami-0": 20, "share-0": 1, "shp-0": 25}
    hard = dict(ResourceQuota.objects.filter(tenant__slug=populated.name).values_list("resource", "hard"))
    assert hard == {"core_percent": 90, "memory_mib": None}
    assert_books_agree()
    assert run_import(populated, "--take")["made"] == []
    assert PodClaim.objects.count() == 4
    assert resource_versions(populated) == before


def test_a_report_for_people_says_what_would_be_made(populated: Namespace) -> None:
    out = StringIO()
    call_command("import_cluster", populated.cluster.name, stdout=out)
    assert out.getvalue().startswith("Would be made: ")
    assert f"Tenant {populated.name}." in out.getvalue()


@pytest.mark.django_db
def test_a_cluster_that_nobody_connected_is_refused() -> None:
    with pytest.raises(CommandError, match="connect it first"):
        call_command("import_cluster", "nowhere", stdout=StringIO())
