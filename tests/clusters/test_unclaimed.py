"""A bound pod that gets no claim in the stated time is evicted, with the ledger's reason; a running one never."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.importing import following
from apps.clusters.models import Cluster, PodClaim, PodHold
from apps.clusters.services import evicting
from apps.nodes.models import Node
from tests.cast import Cast, Machine
from tests.clusters import paper
from tests.clusters.test_evicting import EVICTION, Kube, cluster, machine
from tests.clusters.test_forged import kubeshare_pods
from tests.clusters.test_holding import running

__all__ = ["cluster", "machine"]
Json = dict[str, Any]


@pytest.fixture
def late(cluster: Cluster, machine: Machine) -> Json:
    """Bind a pod to a GPU that another pod has, five minutes ago."""
    following.follow(cluster=cluster, pod=running("first", paper.container(95, 10)), labels={})
    pod = running("train", paper.container(30, 10), paper.container(10, 10, name="other"))
    following.follow(cluster=cluster, pod=pod, labels={})
    assert PodClaim.objects.filter(pod="train", claim=None).count() == 2
    PodClaim.objects.update(created_at=timezone.now() - timedelta(seconds=301))
    return pod


def evict(cluster: Cluster, kube: Kube, pod: Json, *ending: str) -> set[str]:
    there = {pod["metadata"]["uid"]: pod}
    return evicting.evict_unclaimed(cluster=cluster, api=kube, ending=ending, there=there)


def test_it_is_evicted_once_and_its_event_says_what_the_ledger_says(cluster: Cluster, late: Json) -> None:
    kube = Kube()
    assert evict(cluster, kube, late) == {"uid-train"}
    assert kube.evictions == [(EVICTION, "uid-train")]
    [words] = kube.events
    assert "Its GPUs have no room in the ledger" in words
    assert "no claim 300 s after binding" in words
    assert evict(cluster, kube, late, "uid-train") == set()
    following.end(cluster=cluster, pod_uid="uid-train")
    assert not PodHold.objects.exists()


def test_until_then_it_waits(cluster: Cluster, late: Json) -> None:
    PodClaim.objects.update(created_at=timezone.now() - timedelta(seconds=290))
    assert evict(cluster, Kube(), late) == set()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running"},
        {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
        {
            "phase": "Pending",
            "containerStatuses": [{"name": "main", "state": {"waiting": {}}, "lastState": {"terminated": {}}}],
        },
    ],
)
def test_what_runs_or_ran_is_left_alone(cluster: Cluster, late: Json, status: Json) -> None:
    PodClaim.objects.filter(container="other").delete()
    late["status"] = status
    assert evict(cluster, Kube(), late) == set()


def test_a_pod_that_gets_its_claim_by_an_import_is_left_alone(cluster: Cluster, machine: Machine) -> None:
    pending, *_ = kubeshare_pods(machine.gpu().uuid)
    pending["status"] = {"phase": "Pending"}
    following.follow(cluster=cluster, pod=pending, labels={})
    PodClaim.objects.update(created_at=timezone.now() - timedelta(seconds=301))
    assert PodClaim.objects.get().problem
    assert evict(cluster, Kube(), pending) == set()


def test_a_container_that_waits_has_not_started(cluster: Cluster, late: Json) -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "CreateContainerConfigError"}}, "lastState": {}}
    late["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    assert evict(cluster, Kube(), late) == {"uid-train"}


def test_one_that_was_bound_later_than_its_row_is_as_old_waits(cluster: Cluster, late: Json) -> None:
    at = (timezone.now() - timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    late["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]
    assert evict(cluster, Kube(), late) == set()
    del late["status"]["conditions"], late["spec"]["nodeName"]
    assert evict(cluster, Kube(), late) == set()


def test_where_no_agent_waits_for_its_claim_it_is_left_alone(cluster: Cluster, late: Json) -> None:
    Node.objects.update(enrolled_at=None)
    assert evict(cluster, Kube(), late) == set()


def test_with_zero_seconds_nothing_is_evicted(cast: Cast, cluster: Cluster, late: Json, settings: Any) -> None:
    settings.POD_CLAIM_SECONDS = 0
    assert evict(cluster, Kube(), late) == set()
