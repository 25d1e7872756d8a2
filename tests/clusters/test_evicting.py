"""A preempted claim's pod is evicted by its cluster, and the claim ends with it; no claim stays without its pod."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.kube.client import Refused, Unreachable
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters, evicting
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from apps.scheduling.services.reclaiming.forgetting import forget_node
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give_plenty
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_holding import running

EVICTION = "/api/v1/namespaces/ml/pods/train/eviction"


class Kube:
    """The API server's methods that evictions use. `refusals`: the answers to the next ones."""

    def __init__(self) -> None:
        self.evictions: list[tuple[str, str]] = []
        self.events: list[str] = []
        self.refusals: list[Exception] = []

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        if path.endswith("/events"):
            self.events.append(body["message"])
            return b"{}"
        if self.refusals:
            raise self.refusals.pop(0)
        self.evictions.append((path, body["deleteOptions"]["preconditions"]["uid"]))
        return json.dumps({"status": "Success"}).encode()


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a machine with one GPU, in a pool with preemption by priority."""
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True)
    cast.pool.refresh_from_db()
    made = Machine("gpu1", cast.pool, gpus=1)
    Node.objects.update(enrolled_at=timezone.now())
    return made


@pytest.fixture
def cluster(cast: Cast, machine: Machine) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=cast.acme)
    return made


def run(cluster: Cluster, machine: Machine, *cores: int) -> list[Claim]:
    """Create the claims of the running pod `train`."""
    containers = (paper.container(core, 10, name=f"c{place}") for place, core in enumerate(cores))
    following.follow(cluster=cluster, pod=running("train", *containers), labels={})
    machine.obey()
    return [row.claim for row in PodClaim.objects.order_by("pk") if row.claim]


def wants(cast: Cast) -> Claim:
    """Create a claim of higher priority that preempts the GPU's holder."""
    claim = ask(cast, name="urgent", priority=5, core_request=100, memory_mib=GIB, when_over_quota="wait")
    turn(cast)
    return claim


def turn(cast: Cast) -> None:
    Node.objects.update(last_seen_at=timezone.now())
    run_round(cast.pool)
    preemption.drive()


def grace_is_over(cast: Cast) -> None:
    Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
    turn(cast)


def fresh(claim: Claim) -> Claim:
    claim.refresh_from_db()
    return claim


def evict(cluster: Cluster, kube: Kube, *ending: str) -> set[str]:
    return evicting.evict(cluster=cluster, api=kube, ending=ending)


def test_it_is_told_evicted_and_released_when_its_pod_is_over(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    [claim], kube = run(cluster, machine, 60), Kube()
    urgent = wants(cast)
    assert "its pod is evicted" in fresh(claim).reasons[0]["detail"]
    assert evict(cluster, kube) == set()
    grace_is_over(cast)
    assert evict(cluster, kube) == {"uid-train"}
    assert kube.evictions == [(EVICTION, "uid-train")]
    assert "higher priority needs the room" in kube.events[0]
    assert AuditEvent.objects.filter(action="claim.preempt", object_id=str(claim.uid)).count() == 1
    # Until it has ended its pod keeps its share; a pod that is ending already is not evicted again.
    assert evict(cluster, kube, "uid-train") == set()
    assert (fresh(claim).state, fresh(urgent).state) == ("active", "queued")
    following.end(cluster=cluster, pod_uid="uid-train")
    machine.obey()
    turn(cast)
    assert (fresh(claim).state, fresh(urgent).state) == ("released", "assigned")
    assert_books_agree()


def test_else_it_would_be_ended_under_its_pod(
    cast: Cast, cluster: Cluster, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the wait its share would be another's while the pod still runs."""
    monkeypatch.setattr(Claim, "ends_with_its_pod", False)
    [claim] = run(cluster, machine, 60)
    wants(cast)
    grace_is_over(cast)
    machine.obey()
    assert fresh(claim).state == "queued"
    assert PodClaim.objects.live().get().claim == claim


@pytest.mark.parametrize("status", [429, 403, 404])
def test_where_its_cluster_refuses_it_stays_and_is_asked_for_again(
    cast: Cast, cluster: Cluster, machine: Machine, status: int
) -> None:
    """429: a disruption budget; 403: a missing permission; 404: it is gone already."""
    [claim], kube = run(cluster, machine, 60), Kube()
    wants(cast)
    grace_is_over(cast)
    kube.refusals = [Refused(status, "No", "it may not go")]
    assert (evict(cluster, kube), kube.events) == (set(), [])
    assert fresh(claim).state == "active"
    assert evict(cluster, kube) == {"uid-train"}


def test_a_cluster_that_does_not_answer_is_asked_later(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    kube = Kube()
    run(cluster, machine, 60)
    wants(cast)
    grace_is_over(cast)
    kube.refusals = [Unreachable("The API server does not answer.")]
    with pytest.raises(Unreachable):
        evict(cluster, kube)
    assert evict(cluster, kube) == {"uid-train"}


def test_nobody_is_evicted_for_who_waits_no_longer(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    [claim], kube = run(cluster, machine, 60), Kube()
    urgent = wants(cast)
    grace_is_over(cast)
    release_claim(principal=SYSTEM, claim=urgent)
    assert evict(cluster, kube) == set()
    turn(cast)
    assert fresh(claim).preempt_at is None
    assert evict(cluster, kube) == set()


def test_a_pod_of_several_containers_goes_once_and_as_a_whole(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    claims, kube = run(cluster, machine, 20, 30), Kube()
    claim = ask(cast, priority=5, core_request=60, memory_mib=GIB, when_over_quota="wait")
    turn(cast)
    assert [fresh(one).preempted_for for one in claims] == [claim, claim]
    grace_is_over(cast)
    assert evict(cluster, kube) == {"uid-train"}
    assert len(kube.evictions) == 1


def test_a_pod_whose_claim_was_released_under_it_is_evicted(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    [claim], kube = run(cluster, machine, 60), Kube()
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert fresh(claim).state == "released"
    assert evict(cluster, kube) == {"uid-train"}
    assert kube.events == [f"The claim {claim.uid} of container c0 was released."]
    following.end(cluster=cluster, pod_uid="uid-train")
    assert evict(cluster, kube) == set()


def test_a_pod_on_a_node_that_was_forgotten_is_left_alone(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    """Only our agent was down: the state of the node's pods is unknown, also when the machine comes back."""
    [claim], kube = run(cluster, machine, 60), Kube()
    Node.objects.update(last_seen_at=timezone.now() - timedelta(hours=1))
    forget_node(principal=SYSTEM, node=Node.objects.get())
    assert (fresh(claim).state, evict(cluster, kube)) == ("released", set())
    Node.objects.update(enrolled_at=timezone.now())
    assert evict(cluster, kube) == set()
