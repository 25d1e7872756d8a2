"""The time since a cluster was heard, as metrics and in its row: a cluster that says nothing ages."""

from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from apps.clusters.models import Cluster, ClusterState
from apps.clusters.watching import Watched
from tests.cast import Cast
from tests.clusters.extenders import Listening
from tests.clusters.paper import Paper, node
from tests.clusters.test_holding import cluster
from tests.scheduling.scrapes import scrape

__all__ = ["cluster"]
NAME = "gpucloud_cluster_heard_seconds"


def test_a_cluster_that_says_nothing_ages(cast: Cast, cluster: Cluster) -> None:
    Cluster.objects.update(synced_at=timezone.now() - timedelta(seconds=100))
    assert 100 <= scrape(cast.olga).value(NAME, cluster="kube") < 130
    Cluster.objects.update(synced_at=timezone.now())
    assert scrape(cast.olga).value(NAME, cluster="kube") < 30


def test_the_watch_writes_when_it_heard_the_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watched(cluster)
    for reflector, age in zip(watch._reflectors, (3, 80), strict=True):
        reflector._heard_at -= age
    watch.report_age()
    cluster.refresh_from_db()
    # It has not been connected yet.
    assert cluster.synced_at is None
    watch.cluster.state = ClusterState.CONNECTED
    watch.report_age()
    synced_at = Cluster.objects.get().synced_at
    assert synced_at is not None
    assert 80 <= (timezone.now() - synced_at).total_seconds() < 110


def test_the_extender_has_its_own() -> None:
    with Listening() as listening:
        paper: Any = Paper([node("a", 100, 59)])
        listening.clusters["kube"] = paper.extended(ages=lambda: {"pods": 3.0, "nodes": 12.0})
        text = httpx.get(f"{listening.url}/metrics").text
    assert 'gpucloud_extender_heard_seconds{cluster="kube",kind="nodes"} 12.0' in text
