"""Capacity that pods use without a claim is not free: no claim is placed there, and none grows there."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodHold
from apps.clusters.services import bindings, clusters, outside
from apps.nodes.models import Gpu
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet.devices import read_fleet
from apps.scheduling.services.rebalancing import guarantees
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_holding import follow, running


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a machine with one GPU."""
    return Machine("gpu1", cast.pool, gpus=1)


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def free(machine: Machine) -> tuple[int, int]:
    gpu = machine.gpu()
    return gpu.core_free, gpu.memory_free_mib


def try_claim(cast: Cast, **facts: Any) -> str:
    """Return the state of a claim of globex's."""
    claim = ask(cast, tenant=cast.globex, **facts)
    run_round(cast.pool)
    claim.refresh_from_db()
    return str(claim.state)


def test_what_a_pod_above_its_quota_uses_is_not_given_again(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    given = give(cast.acme, core_percent=20, memory_mib=100_000)
    give_plenty(cast.globex)
    row = follow(cluster, running("train", paper.container(30, 10)))
    assert (row.claim, row.core, row.memory_mib) == (None, 30, 2560)
    assert free(machine) == (70, 24 * GIB - 2560)
    assert try_claim(cast, core_request=80, memory_mib=1) == "queued"
    assert try_claim(cast, core_request=1, memory_mib=24 * GIB - 2000) == "queued"
    quotas.change_quota(principal=SYSTEM, quota=given["core_percent"], hard=100)
    row = follow(cluster, running("train", paper.container(30, 10)))
    gpu = machine.gpu()
    assert row.claim is not None
    assert (gpu.core_used, gpu.core_outside, gpu.memory_outside_mib) == (30, 0, 0)
    assert_books_agree()


def test_what_nobodys_pod_uses_is_free_once_it_is_over(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    pod = running("train", paper.container(100))
    pod["metadata"]["namespace"] = "other"
    for _ in range(2):
        follow(cluster, pod)
    assert free(machine) == (0, 0)
    following.end(cluster=cluster, pod_uid="uid-train")
    assert free(machine) == (100, 24 * GIB)
    assert not PodHold.objects.exists()


def test_a_pod_on_a_gpu_that_is_full_has_what_is_freed_there(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.acme, cast.globex)
    claim, _ = placed(cast, machine, tenant=cast.globex, core_request=90, memory_mib=GIB)
    follow(cluster, running("train", paper.container(30, 10)))
    assert free(machine)[0] == 0
    lifecycle.release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert free(machine)[0] == 70
    assert try_claim(cast, core_request=80, memory_mib=1) == "queued"
    assert follow(cluster, running("train", paper.container(30, 10))).claim is not None
    assert free(machine)[0] == 70


def test_no_claim_grows_into_what_a_pod_uses(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give_plenty(cast.globex)
    claim, _ = placed(cast, machine, tenant=cast.globex, core_request=50, memory_mib=GIB)
    follow(cluster, running("train", paper.container(30, 10)))
    answer = cast.gus.patch(f"claims/{claim.uid}/", {"core_request": 80, "core_limit": 80})
    assert (answer.status, answer.code, answer.body["core_free"]) == (409, "no-room", 20)
    gpu = machine.gpu()
    assert not capacity.take_many({gpu.pk: (21, 1)})
    assert not capacity.borrow(gpu_id=gpu.pk, core=21, memory_mib=1)


def test_what_is_used_twice_is_known_to_rounds_and_shown_as_nothing_free(cast: Cast, machine: Machine) -> None:
    both = {"core_used": 80, "core_outside": 60, "memory_used_mib": 20 * GIB, "memory_outside_mib": 5 * GIB}
    Gpu.objects.update(**both)
    assert free(machine) == (0, 0)
    seen = read_fleet(cast.pool)[0]
    assert (seen.core_free, seen.core_over, seen.memory_free_mib, seen.memory_over_mib) == (0, 40, 0, GIB)
    after = seen.with_more(80, 20 * GIB)
    assert (after.core_free, after.core_over, after.memory_free_mib, after.memory_over_mib) == (40, 0, 19 * GIB, 0)
    assert after.with_more(-80, -20 * GIB) == seen
    Gpu.objects.update(core_lent=50)
    assert [gpu.core_free for gpu in guarantees._lent_fleet(cast.pool)] == [10]


def test_what_is_used_without_a_claim_is_shown(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    follow(cluster, running("train", paper.container(30, 10)))
    shown = cast.olga.get(f"gpus/{machine.gpu().uuid}/").body
    assert (shown["core_used"], shown["core_outside"], shown["core_free"]) == (0, 30, 70)
    assert shown["memory_outside_mib"] == 2560


def test_promises_that_came_to_nothing_are_forgotten(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    chosen = running("chosen", paper.container(10, 1), on="gpu1")
    chosen["spec"].pop("nodeName")
    unheard = paper.pod("unheard", paper.container(10, 1))
    for uid in ("uid-chosen", "uid-unheard", "uid-gone"):
        outside.keep(cluster=cluster, pod_uid=uid, parts={machine.gpu().pk: (10, 256)})
    following.forget_promises(cluster=cluster, pods_there=[chosen, unheard])
    # The watch may not have received them yet.
    assert PodHold.objects.count() == 3
    PodHold.objects.update(since=timezone.now() - timedelta(minutes=2))
    following.forget_promises(cluster=cluster, pods_there=[chosen, unheard])
    assert list(PodHold.objects.values_list("pod_uid", flat=True)) == ["uid-chosen"]
    assert machine.gpu().core_outside == 10


def test_a_cluster_that_is_removed_uses_nothing(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    follow(cluster, running("train", paper.container(30, 10)))
    clusters.remove(principal=SYSTEM, cluster=cluster)
    assert free(machine)[0] == 100
    assert not Claim.objects.exists()
