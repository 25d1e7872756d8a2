"""A rehearsal reports exactly what the import then does; it changes nothing, and blocks nobody."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.clusters.importing import following, rehearsing
from apps.clusters.importing.plan import Snapshot, plan
from apps.clusters.importing.taking import Report
from apps.clusters.models import Cluster
from apps.clusters.services import bindings
from apps.nodes.models import Gpu
from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from tests.cast import GIB, Cast, Machine, give, give_plenty
from tests.clusters.formats.pods import container_with, pod
from tests.clusters.importing.populated import gpu_manager_pod, gpushare_pod, populate, running
from tests.clusters.importing.test_taking import cluster, machine, rows, take

__all__ = ["cluster", "machine"]
pytestmark = pytest.mark.django_db
# Rows that others wait for: GPUs, nodes and claims that are written or locked.
HELD = ("nodes_gpu", "nodes_node", "scheduling_claim", "scheduling_assignment", "clusters_podclaim")


def rehearse(cluster: Cluster, snapshot: Snapshot) -> Report:
    return rehearsing.rehearse(principal=SYSTEM, cluster=cluster, plan=plan(snapshot))


def crowd(count: int, *, gpus: int = 1) -> list[dict[str, Any]]:
    """Create pods of red, 30 percent each, over so many GPUs."""
    return [gpu_manager_pod(f"tc-{number}", index=str(number % gpus)) for number in range(count)]


def nothing_else(cast: Cast, cluster: Cluster) -> Snapshot:
    return populate()


def too_many_for_a_gpu(cast: Cast, cluster: Cluster) -> Snapshot:
    return Snapshot(pods=crowd(5))


def too_many_for_a_quota(cast: Cast, cluster: Cluster) -> Snapshot:
    return replace(populate(), pods=crowd(5, gpus=2))


def two_namespaces_of_one_tenant(cast: Cast, cluster: Cluster) -> Snapshot:
    for namespace in ("red", "blue"):
        bindings.bind(principal=SYSTEM, cluster=cluster, tenant=cast.acme, namespace=namespace)
    give(cast.acme, core_percent=60)
    return Snapshot(pods=[*crowd(3, gpus=2), gpushare_pod()])


def a_pod_of_which_half_fits(cast: Cast, cluster: Cluster) -> Snapshot:
    said = {"tencent.com/predicate-gpu-idx-0": "0", "tencent.com/predicate-gpu-idx-1": "0"}
    both = running(pod(container_with(core=60, memory=4), container_with(core=60, memory=4), annotations=said))
    return Snapshot(pods=[both, *crowd(2)])


def gpus_that_are_reserved_or_ail(cast: Cast, cluster: Cluster) -> Snapshot:
    give_plenty(cast.globex)
    Gpu.objects.filter(index=1).update(unhealthy="XID 79")
    begin = timezone.now() + timedelta(days=7)
    when = {"start_at": begin, "end_at": begin + timedelta(hours=1)}
    create_reservation(
        principal=SYSTEM, tenant=cast.globex, pool=cast.pool, name="exam", core_request=50, memory_mib=GIB, **when
    )
    return Snapshot(pods=crowd(4, gpus=2))


def what_runs_without_a_claim(cast: Cast, cluster: Cluster) -> Snapshot:
    pods = crowd(3)
    for one in pods[:2]:
        following.follow(cluster=cluster, pod=one, labels={})
    assert Gpu.objects.get(index=0).core_outside == 60
    return Snapshot(pods=pods)


@pytest.mark.parametrize(
    "made",
    [
        nothing_else,
        too_many_for_a_gpu,
        too_many_for_a_quota,
        two_namespaces_of_one_tenant,
        a_pod_of_which_half_fits,
        gpus_that_are_reserved_or_ail,
        what_runs_without_a_claim,
    ],
)
def test_what_is_rehearsed_is_what_is_done(
    cast: Cast, cluster: Cluster, machine: Machine, made: Callable[[Cast, Cluster], Snapshot]
) -> None:
    snapshot = made(cast, cluster)
    before = rows()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        rehearsed = rehearse(cluster, snapshot)
    assert rows() == before
    for query in asked.captured_queries:
        statement = str(query["sql"])
        writes = statement.startswith(("INSERT", "UPDATE", "DELETE")) or " FOR " in statement
        assert not (writes and any(f'"{table}"' in statement for table in HELD)), statement
    assert rehearsed == take(cluster, snapshot)
    assert rehearse(cluster, snapshot).made == []


def test_nothing_is_locked_while_pods_are_tried(cluster: Cluster) -> None:
    """For any number of pods: each rolled-back transaction belongs to one tenant, and locks its quotas only."""
    with CaptureQueriesContext(connection) as asked:
        rehearse(cluster, populate())
    statements = [str(query["sql"]) for query in asked.captured_queries]
    last = max(place for place, text in enumerate(statements) if text.startswith("ROLLBACK TO SAVEPOINT"))
    assert not any("SAVEPOINT" in text for text in statements[last + 2 :])
    assert any('"clusters_podclaim"' in text for text in statements[last + 1 :])
    assert not any('"clusters_podclaim"' in text for text in statements[:last])
