"""ResourceClaims after a refusal, a restore, a new binding of their namespace, and the removal of the DeviceClass."""

from typing import Any

import pytest

from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import ledger, publishing, resizing, slices
from apps.clusters.dra.publishing import Publisher
from apps.clusters.models import Cluster, NamespaceBinding
from apps.clusters.services import bindings
from apps.nodes.models import Gpu
from apps.quotas.models import ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, used
from tests.clusters.dra.test_ledger import Cell, allocated, annotated, cluster, follow, machine, made

__all__ = ["cluster", "machine"]


@pytest.fixture
def running(cast: Cast, cluster: Cluster, machine: Machine) -> dict[str, Any]:
    """Return a ResourceClaim of 30 percent that runs."""
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = allocated(made(), machine.gpu())
    follow(cluster, thing)
    machine.obey()
    return thing


def fill(machine: Machine, core: int) -> None:
    """Let pods of others hold this part of the GPU."""
    Gpu.objects.filter(pk=machine.gpu().pk).update(core_outside=core)


def size(cluster: Cluster, thing: dict[str, Any]) -> int:
    claim = Claim.objects.get(device_claim__uid=thing["metadata"]["uid"])
    return claim.core_request


def test_a_refused_resize_is_tried_again(
    cast: Cast, cluster: Cluster, machine: Machine, running: dict[str, Any]
) -> None:
    fill(machine, 60)
    wanted = annotated(running, core="80")
    row = follow(cluster, wanted)
    assert row.refusal != ""
    assert list(resizing.find_refused(cluster)) == [row]
    version = row.version
    assert follow(cluster, wanted).version == version, "nothing is written while nothing changes"
    fill(machine, 0)
    assert follow(cluster, wanted).refusal == ""
    assert size(cluster, running) == 80
    assert not resizing.find_refused(cluster).exists()
    assert_books_agree()


def test_a_size_set_since_counts_more_than_a_refused_one(
    cast: Cast, cluster: Cluster, machine: Machine, running: dict[str, Any]
) -> None:
    fill(machine, 60)
    wanted = annotated(running, core="80")
    row = follow(cluster, wanted)
    assert row.claim is not None
    resize_claim(principal=SYSTEM, claim=row.claim, changes=ClaimChanges(core_request=35, core_limit=35))
    fill(machine, 0)
    follow(cluster, wanted)
    assert size(cluster, running) == 35
    assert not resizing.find_refused(cluster).exists()


def test_a_claim_of_a_former_tenant_shrinks_but_does_not_grow(
    cast: Cast, cluster: Cluster, machine: Machine, running: dict[str, Any]
) -> None:
    bindings.change(principal=SYSTEM, binding=NamespaceBinding.objects.get(), tenant=cast.globex)
    refusal = follow(cluster, annotated(running, core="40")).refusal
    assert refusal == (
        "Namespace vision is bound to tenant globex now, and this claim is charged to acme: "
        "it can shrink, not grow. Create the ResourceClaim anew."
    )
    assert used(cast.acme)["core_percent"] == 30
    assert follow(cluster, annotated(running, core="20")).refusal == ""
    assert size(cluster, running) == 20


def test_a_uid_that_comes_back_is_charged_anew(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """A cluster's etcd that is restored from a backup has objects that had ended."""
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = made()
    first = follow(cluster, thing).claim
    ledger.end(cluster=cluster, uid=thing["metadata"]["uid"])
    assert used(cast.acme)["core_percent"] == 0
    row = follow(cluster, allocated(thing, machine.gpu()))
    assert row.claim != first
    assert (row.ended_at, row.problem, row.seen) == (None, "", True)
    assert used(cast.acme)["core_percent"] == 30
    machine.obey()
    assert_books_agree()


def test_a_uid_that_comes_back_without_quota_is_a_problem(cast: Cast, cluster: Cluster) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = made()
    follow(cluster, thing)
    ledger.end(cluster=cluster, uid=thing["metadata"]["uid"])
    ResourceQuota.objects.filter(resource="core_percent").update(hard=0)
    row = follow(cluster, thing)
    assert (row.ended_at, row.claim) == (None, None)
    assert "quota" in row.problem.lower()


def test_a_device_class_that_somebody_removed_comes_back(
    cast: Cast, cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Cell()
    publisher = Publisher(cluster, api)
    publisher.publish()
    path = f"/apis/{slices.GROUP}/deviceclasses/{DEVICE_CLASS}"
    del api.things[path]
    publisher.publish()
    assert path not in api.things, "not looked for at each pass"
    monkeypatch.setattr(publisher, "_class_due", publisher._class_due - publishing.CLASS_SECONDS)
    publisher.publish()
    assert path in api.things
