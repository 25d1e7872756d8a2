"""Metrics: docs/metrics.md names every one of a scrape, and every one is shown to move."""

import re
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from agent import metrics as agents
from agent import wire
from apps.nodes.models import Gpu, GpuHealth, Node
from apps.quotas.models import Pool, ResourceQuota
from apps.quotas.principals import SYSTEM
from apps.quotas.services.webhooks import hooks, outbox, sending
from apps.scheduling.models import Claim, PackProfile, RotationMember
from apps.scheduling.models.choices import Idle
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud import counters
from tests.cast import GIB, Cast, Machine, ask, give_plenty, placed
from tests.metrics.test_metrics import MOVED, store
from tests.scheduling.scrapes import scrape

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
NAME = re.compile(r"`((?:gpucloud|container|DCGM)_\w+)`")
# Moved by the tests named here.
MOVED_ELSEWHERE = {
    "gpucloud_pools_set_aside": "test_failures.py: a pool over which a round raises",
    "gpucloud_quota_borrowed": "test_cohorts.py: a quota above its nominal share",
    "gpucloud_past_use_gpus": "test_metrics.py: a pool that remembers",
    "gpucloud_details_left_out": "test_metrics.py: more devices than one scrape should carry",
    "gpucloud_cluster_heard_seconds": "clusters/test_heard.py: a cluster that says nothing ages",
    "gpucloud_http_requests": "test_metrics.py: a request is counted by its route",
    "gpucloud_http_request_seconds": "test_metrics.py: a request is counted by its route",
}


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    counters.write()
    counters._redis().delete(counters._key())


def documented(source: str) -> set[str]:
    """Return the families that the page's table says come from `server` or `agent`."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    found = {name for row in rows if source in row.rpartition("| ")[2] for name in NAME.findall(row.split(" | ")[0])}
    # A counter's family has its name without the suffix; gpu-manager gave the suffix to gauges, too.
    return {name.removesuffix("_total") if name.startswith("gpucloud_") else name for name in found}


def build_scene(cast: Cast, machine: Machine, settings: Any) -> None:
    """Let everything happen once that a metric counts."""
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    hooks.create(principal=SYSTEM, tenant=cast.acme, url="http://127.0.0.1:9/nobody", events=["claim.active"])
    _, assignment = placed(cast, machine)
    outbox.tell("claim.active", tenant=cast.acme)
    assert sending.deliver() >= 1
    outbox.tell("claim.active", tenant=cast.acme)
    ask(cast, memory_mib=23 * GIB, gpu_count=4, core_request=100)
    run_round(cast.pool)
    store(machine, assignment, borrowed=MOVED)
    readings = {"ecc_corrected": 1, "ecc_uncorrected": 1, "sm_active_percent": 5, "tensor_active_percent": 5}
    processes = [{"pid": 1, "command": "python", "memory_mib": 1, "claim": None, "tenant": None}]
    more = {"dram_active_percent": 5, "processes": processes}
    GpuHealth.objects.create(gpu=machine.gpu(), reported_at=timezone.now(), **readings, **more)
    Pool.objects.update(idle_rule="report", idle_seconds=60)
    Claim.objects.filter(pk=assignment.claim_id).update(idle_since=timezone.now(), idle_reason=Idle.IDLE)
    Claim.objects.filter(pk=assignment.claim_id).update(below_guarantee_since=timezone.now())
    behind = Machine("gpu2", cast.pool).node
    Node.objects.filter(pk=behind.pk).update(frame=behind.frame + 5, drifts=[{"what": "limits"}])
    Node.objects.filter(pk=behind.pk).update(host_memory_mib=GIB, host_memory_used_mib=1)
    Gpu.objects.filter(pk=machine.gpu(3).pk).update(core_outside=20, memory_outside_mib=GIB, unhealthy="XID 79")
    Gpu.objects.filter(pk=machine.gpu(2).pk).update(cordoned=True)
    Pool.objects.update(oversubscribe=2, pack_keep_percent=90)
    profile = {"launches": 1.0, "core": 1.0, "measured_at": timezone.now(), "kept": 95.0}
    PackProfile.objects.create(claim_id=assignment.claim_id, **profile)
    counters.PACKS.add(cast.pool.name, "pack")
    RotationMember.objects.create(claim_id=assignment.claim_id, counted_to=timezone.now(), place=0)
    counters.ROTATIONS.add(cast.pool.name)
    ResourceQuota.objects.update(updated_at=timezone.now() - timedelta(minutes=1))


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def test_the_page_names_the_servers_metrics_and_each_moves(
    cast: Cast, machine: Machine, settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        build_scene(cast, machine, settings)
    told = scrape(cast.olga)
    assert set(told.families) == documented("server"), "docs/metrics.md and /metrics name other metrics"
    still = {name for name, family in told.families.items() if not any(sample.value for sample in family.samples)}
    assert still - MOVED_ELSEWHERE.keys() == set(), "always 0: count it, or name the test that shows it move"


def test_the_page_names_the_agents_metrics() -> None:
    facts = agents.Facts("n", "n", (), None, wire.Observed(frame=0, assignments=[]), None, True, 0, True, 0, 0, {})
    own = {family.name for family in agents._agent_metrics(facts)}
    assert own | set(agents.SHARES) | set(agents.DEVICES) == documented("agent")
