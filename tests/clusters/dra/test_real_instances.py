"""MIG instances as partitionable devices on a real API server and kube-scheduler."""

from collections.abc import Iterator
from typing import Any

import pytest

from apps.clusters.dra import instances, partitions, slices
from apps.clusters.models import DeviceClaim
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import GIB, Cast, assert_books_agree, give, used
from tests.clusters.cluster_objects import pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.dra import things
from tests.clusters.dra.site import Site
from tests.clusters.dra.things import API, Json
from tests.scheduling.divided import MEMORY_MIB, on_the_wire

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
H200: dict[str, Any] = {"memory_mib": MEMORY_MIB["H200"], "model": "NVIDIA H200"}
CLASSES = f"{API}/deviceclasses"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a control plane whose scheduler allocates devices by itself."""
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    with ControlPlane(tmp_path_factory.mktemp("kube"), scheduler_config=config) as it:
        yield it


@pytest.fixture
def site(plane: ControlPlane, cast: Cast, settings: Any) -> Iterator[Site]:
    settings.ADMISSION_MIG = "serve"
    made = Site(plane, cast, mig={0: on_the_wire()}, **H200)
    give(cast.acme, core_percent=400, memory_mib=1000 * GIB)
    # Of all tests, one pool has such GPUs: the scheduler must not choose another test's.
    made.until(lambda: made.client.find(f"{CLASSES}/mig-3g.71gb.gpucloud.io") is not None)
    yield made
    made.client.delete(f"{slices.PATH}?labelSelector={slices.POOL_LABEL}={cast.pool.name}")
    made.close()


def instance(name: str, namespace: str, profile: str = "3g.71gb") -> Json:
    """Return a ResourceClaim for an instance."""
    made = things.claim(name, namespace)
    asked = {"deviceClassName": f"mig-{profile}.gpucloud.io"}
    made["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}
    return made


def use(site: Site, name: str) -> None:
    site.make(things.pod(name, site.name, claim=name))


def device_of(site: Site, name: str) -> str:
    allocation = site.claim(name).get("status", {}).get("allocation") or {}
    return "".join(one["device"] for one in allocation.get("devices", {}).get("results", ()))


def places(site: Site) -> dict[str, tuple[int | None, int | None]]:
    """Return the first slice and the size of each ResourceClaim's instance, as the ledger has them."""
    rows = DeviceClaim.objects.live().filter(cluster=site.cluster, claim__isnull=False)
    found = {row.name: Assignment.objects.live().filter(claim=row.claim).first() for row in rows}
    return {name: (item.mig_start, item.mig_size) for name, item in found.items() if item is not None}


def waits(site: Site, name: str) -> str:
    """Return why kube-scheduler does not place the pod."""
    found = pod(site.client, site.name, name).get("status", {}).get("conditions") or []
    return " ".join(one.get("message", "") for one in found if one["type"] == "PodScheduled")


def test_the_scheduler_allocates_two_that_fit_and_refuses_the_third(site: Site, cast: Cast) -> None:
    for name in ("a", "b"):
        site.make(instance(name, site.name))
        use(site, name)
    site.until(lambda: len(places(site)) == 2)
    assert sorted(places(site).values()) == [(0, 4), (4, 4)]
    site.until(lambda: all(site.condition(name)[0] == "True" for name in ("a", "b")))
    assert {device_of(site, name).rpartition("-mig-")[2] for name in ("a", "b")} == {"3g-71gb-0", "3g-71gb-4"}
    assert used(cast.acme)["core_percent"] == 84
    site.make(instance("c", site.name))
    use(site, "c")
    site.until(lambda: "cannot allocate all claims" in waits(site, "c"))
    # Charged as every ResourceClaim is, and placed as soon as one ends.
    assert device_of(site, "c") == ""
    remove(site.client, site.name, "a")
    site.client.delete(f"{API}/namespaces/{site.name}/resourceclaims/a")
    site.until(lambda: site.condition("c")[0] == "True")
    assert_books_agree()


def test_what_others_have_is_not_the_schedulers_to_give(site: Site, cast: Cast) -> None:
    """A claim from outside of Kubernetes takes the upper half; the scheduler has the lower one left."""
    spec = ClaimSpec(tenant=cast.acme, pool=cast.pool, name="outside", profile="3g.71gb")
    outside = lifecycle.create_claim(principal=SYSTEM, spec=spec)
    run_round(cast.pool)
    taken = outside.assignments.get()
    site.make(instance("d", site.name, "4g.71gb"))
    site.make(instance("e", site.name, "1g.18gb"))
    site.machine.obey()
    assert taken.mig_start == 4
    gpu = partitions.name_slice(site.name, instances.read(site.cluster)[site.name][0], "counters")

    def counted() -> list[str]:
        found = site.client.find(f"{slices.PATH}/{gpu}") or {}
        sets = found.get("spec", {}).get("sharedCounters") or [{}]
        return [one["value"] for _, one in sorted(sets[0].get("counters", {}).items())]

    site.until(lambda: counted() == ["1"] * 4 + ["0"] * 4)
    use(site, "d")
    use(site, "e")
    site.until(lambda: site.condition("d")[0] == "True")
    assert places(site)["d"] == (0, 4)
    site.until(lambda: "cannot allocate all claims" in waits(site, "e"))
    assert_books_agree()


def test_a_share_of_a_gpu_is_never_an_instance(site: Site) -> None:
    site.make(things.claim("share", site.name))
    use(site, "share")
    site.until(lambda: "cannot allocate all claims" in waits(site, "share"))


def test_nvidias_own_manifest_gets_an_instance_charged_to_its_namespace(site: Site, cast: Cast) -> None:
    """Kubernetes makes the ResourceClaim of the extended resource (KEP-5004)."""
    made = things.pod("mixed", site.name, claim="none")
    made["spec"] = {
        "containers": [
            {"name": "nvidia-smi", "image": "cuda", "resources": {"limits": {"nvidia.com/mig-2g.35gb": "1"}}}
        ]
    }
    site.make(made)
    site.until(lambda: len(places(site)) == 1, seconds=60)
    assert next(iter(places(site).values()))[1] == 2
    assert used(cast.acme)["core_percent"] == 28
    assert pod(site.client, site.name, "mixed")["spec"]["nodeName"] == site.name
    assert_books_agree()
