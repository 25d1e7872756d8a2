"""Leftovers of ResourceClaims and clusters: slices, claims that nobody uses, rows, pods without a share."""

import json
import threading
from typing import Any

import pytest
from django.utils import timezone

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import evicting, ledger, slices
from apps.clusters.dra.publishing import Publisher
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import clusters
from apps.clusters.watches import Watch, Watches
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, used
from tests.clusters.dra.test_ledger import Cell, allocated, annotated, cluster, follow, machine, made
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.rights import require

__all__ = ["cluster", "machine"]
CLASS = f"/apis/{slices.GROUP}/deviceclasses/{DEVICE_CLASS}"


class ListedCell(Cell):
    """A cell whose slices can be listed."""

    def list(self, path: str, **query: str) -> tuple[list[bytes], str]:
        require("GET", path)
        assert query == {"fieldSelector": f"spec.driver={DRIVER}"}
        return [json.dumps(thing).encode() for name, thing in self.things.items() if name.startswith(path)], "1"


def test_what_was_published_is_withdrawn(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    api = ListedCell()
    Publisher(cluster, api).publish()
    foreign = slices.slice_of("other", "uid", [])
    api.post(slices.PATH, foreign)
    # By a process that has written nothing, too.
    Publisher(cluster, api).withdraw(api)
    assert [name for name in api.things if name.startswith(slices.PATH)] == [f"{slices.PATH}/other-gpucloud.io"]
    # The other pool's devices are asked for by this class.
    assert CLASS in api.things
    del api.things[f"{slices.PATH}/other-gpucloud.io"]
    Publisher(cluster, api).withdraw(api)
    assert CLASS not in api.things


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["disabled", "removed", "changed"])
def test_a_cluster_that_is_watched_no_longer_is_withdrawn_from(cast: Cast, cluster: Cluster, how: str) -> None:
    cluster.bindings.all().delete()
    cluster.delete()
    cluster = clusters.connect(principal=SYSTEM, name="other", pool=cast.pool, kubeconfig=kubeconfig())
    withdrawn = threading.Event()

    class Counted(Watch):
        def step(self) -> None:
            self._stopped.wait(0.01)

        def withdraw(self) -> None:
            withdrawn.set()

    watches = Watches(Counted)
    watches.refresh()
    [first] = watches.by_name.values()
    if how == "disabled":
        Cluster.objects.update(enabled=False)
    elif how == "removed":
        clusters.remove(principal=SYSTEM, cluster=cluster)
    else:
        cluster.change(strict=True)
    watches.refresh()
    first.join(10)
    assert withdrawn.is_set() == (how != "changed")
    watches.stop()


def test_a_pod_that_comes_after_a_release_is_charged_anew(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """Its ResourceClaim stays allocated as long as any pod has it."""
    give(cast.acme, core_percent=None, memory_mib=None)
    thing = allocated(made(), machine.gpu())
    row = follow(cluster, thing)
    machine.obey()
    assert row.claim is not None
    lifecycle.release_claim(principal=SYSTEM, claim=row.claim)
    machine.obey()
    api, released = Cell(), set[int]()

    def evict(thing: dict[str, Any], ending: set[str]) -> set[str]:
        return evicting.evict(cluster=cluster, api=api, there={row.uid: thing}, ending=ending, released=released)

    assert evict(thing, set()) == {"pod-1"}
    assert evict(thing, {"pod-1"}) == {"pod-1"}
    both = [*thing["status"]["reservedFor"], {"resource": "pods", "name": "q", "uid": "pod-2"}]
    later = {**thing, "status": {**thing["status"], "reservedFor": both}}
    assert evict(later, {"pod-1"}) == {"pod-1"}
    anew = follow(cluster, later).claim
    assert anew is not None
    assert (anew.pk != row.claim.pk, anew.state) == (True, "assigned")
    # And its pod stays.
    assert evict(later, {"pod-1"}) == {"pod-1"}
    assert used(cast.acme)["core_percent"] == 30
    assert_books_agree()


def test_a_claim_that_nobody_uses_gives_its_quota_back_until_a_pod_comes(
    cast: Cast, cluster: Cluster, machine: Machine, settings: Any
) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = made()
    follow(cluster, thing)
    assert ledger.release_unused(cluster) == 0
    Claim.objects.update(created_at="2026-01-01T00:00:00Z")
    settings.RESOURCE_CLAIM_UNUSED_SECONDS = 0
    assert ledger.release_unused(cluster) == 0
    settings.RESOURCE_CLAIM_UNUSED_SECONDS = 3600
    assert ledger.release_unused(cluster) == 1
    assert used(cast.acme)["core_percent"] == 0
    # Passes over it change nothing before it is allocated.
    for _ in range(2):
        row = follow(cluster, thing)
        assert (row.claim, row.problem) == (None, ledger.UNUSED)
    row = follow(cluster, allocated(thing, machine.gpu()))
    assert row.problem == ""
    assert row.claim is not None
    assert row.claim.state == "assigned"
    Claim.objects.update(created_at="2026-01-01T00:00:00Z")
    assert ledger.release_unused(cluster) == 0
    assert_books_agree()


def test_rows_of_ended_resource_claims_are_removed_after_a_week(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    rows = [follow(cluster, made(name)) for name in ("old", "new", "live")]
    for row in rows[:2]:
        ledger.end(cluster=cluster, uid=row.uid)
    DeviceClaim.objects.filter(pk=rows[0].pk).update(ended_at=timezone.now() - ledger.KEPT * 2)
    assert ledger.prune(cluster) == 1
    assert [row.name for row in DeviceClaim.objects.all()] == ["new", "live"]
    # Their claims are the account.
    assert Claim.objects.count() == 3


def test_annotations_of_a_new_resource_claim_are_applied_when_it_is_placed(
    cast: Cast, cluster: Cluster, machine: Machine
) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    row = follow(cluster, annotated(allocated(made(), machine.gpu()), core="60"))
    assert row.claim is not None
    row.claim.refresh_from_db()
    assert row.claim.core_request == 60
