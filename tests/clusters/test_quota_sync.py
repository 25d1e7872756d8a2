"""A tenant's quota in its namespace, on a real control plane: Kubernetes refuses what the ledger would refuse."""

from collections.abc import Callable, Iterator

import pytest

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters, quota_sync
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas
from tests.cast import Cast, give
from tests.cast import ask as ask_outside
from tests.clusters.cluster_objects import CORE, MEMORY, add_namespace, ask, remove_all
from tests.clusters.control_plane import ControlPlane
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]

PATH = "/api/v1/namespaces/synced/resourcequotas/gpucloud"


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    found = control_plane.client()
    add_namespace(found, "synced")
    return found


@pytest.fixture
def cluster(cast: Cast, control_plane: ControlPlane, client: Client) -> Iterator[Cluster]:
    kubeconfig = control_plane.kubeconfig()
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig, sync_quotas=True)
    bindings.bind(principal=SYSTEM, cluster=made, namespace="synced", tenant=cast.acme)
    yield made
    remove_all(client)


@pytest.fixture
def sync(cluster: Cluster, client: Client) -> Callable[[], int]:
    return lambda: quota_sync.sync(cluster=cluster, client=client, namespaces={"synced": {}, "other": {}})


def hard(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.get(PATH)["spec"]["hard"]
    return found


def due(core: int, mib: int) -> dict[str, str]:
    of_hami = {"limits.nvidia.com/gpucores": str(core), "limits.nvidia.com/gpumem": str(mib)}
    return {f"requests.{CORE}": str(core), f"requests.{MEMORY}": str(mib // 256), **of_hami}


def test_kubernetes_refuses_what_the_tenant_may_not_have(cast: Cast, client: Client, sync: Callable[[], int]) -> None:
    given = give(cast.acme, core_percent=100, memory_mib=59 * 256 + 255)
    assert (sync(), hard(client)) == (1, due(100, 59 * 256 + 255))
    assert sync() == 0
    assert eventually(lambda: client.get(PATH).get("status", {}).get("hard") == due(100, 59 * 256 + 255), seconds=30)
    with pytest.raises(Refused, match="exceeded quota: gpucloud"):
        ask(client, "synced", "large", core=200, memory=1)
    ask(client, "synced", "small", core=30, memory=1)

    quotas.change_quota(principal=SYSTEM, quota=given["core_percent"], hard=400)
    assert (sync(), hard(client)) == (1, due(400, 59 * 256 + 255))


def test_large_amounts_are_written_once(cast: Cast, sync: Callable[[], int]) -> None:
    """Kubernetes makes `9k` of 9000."""
    give(cast.acme, core_percent=9000, memory_mib=4000 * 256)
    sync()
    assert sync() == 0


def test_what_is_held_outside_of_kubernetes_is_not_there_inside(
    cast: Cast, client: Client, sync: Callable[[], int]
) -> None:
    give(cast.acme, core_percent=100, memory_mib=59 * 256)
    ask_outside(cast, core_request=40, memory_mib=9 * 256)
    sync()
    assert hard(client) == due(60, 50 * 256)


def test_what_somebody_changed_is_put_right_and_noted(cast: Cast, client: Client, sync: Callable[[], int]) -> None:
    give(cast.acme, core_percent=100, memory_mib=59 * 256)
    sync()
    client.patch(PATH, {"spec": {"hard": {f"requests.{CORE}": "9000", "pods": "3"}}})
    before = AuditEvent.objects.filter(action="namespace.quota_repaired").count()
    assert (sync(), hard(client)) == (1, due(100, 59 * 256))
    events = AuditEvent.objects.filter(action="namespace.quota_repaired").order_by("pk")
    assert events.count() == before + 1
    assert sync() == 0
    assert events.last().before == {"hard": {**due(9000, 59 * 256), "limits.nvidia.com/gpucores": "100", "pods": "3"}}  # type: ignore[union-attr]


def test_what_is_unlimited_is_left_out_and_no_quota_is_none(
    cast: Cast, client: Client, sync: Callable[[], int]
) -> None:
    give(cast.acme, core_percent=None)
    sync()
    assert hard(client) == {f"requests.{MEMORY}": "0", "limits.nvidia.com/gpumem": "0"}
