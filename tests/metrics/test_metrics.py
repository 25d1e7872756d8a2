"""`/metrics` and `/metric`: access, contents, and the cost of a scrape."""

import math
import time
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from msgspec import structs

from agent import metrics as agents
from agent import wire
from apps.metrics import devices, shares
from apps.nodes.models import Gpu, GpuHealth, Node
from apps.quotas.models import Token, Webhook, WebhookDelivery
from apps.quotas.principals import SYSTEM
from apps.quotas.services import tenants
from apps.quotas.services.webhooks import hooks, outbox, sending
from apps.scheduling.models import Assignment, Claim, PastUse
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud import counters
from tests.cast import GIB, MIB_BYTES, Api, Cast, Machine, ask, give, give_plenty, lose, placed, token_for
from tests.measurements import tell
from tests.receiver import receive
from tests.scheduling import monitored
from tests.scheduling.scrapes import scrape


@pytest.fixture(autouse=True)
def reset_counters() -> None:
    """Reset the counters to zero."""
    counters.write()
    counters._redis().delete(counters._key())


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)


def store_use(machine: Machine, *assignments: Assignment, core_percent: float = 40.0, **more: Any) -> wire.Usage:
    """Store one second of the node: each assignment and each GPU has this use."""
    facts: dict[str, Any] = {
        "core_limit_percent": 60,
        "throttled_percent": 25.0,
        "memory_limit_bytes": 1,
        "processes": 1,
    }
    return wire.Usage(
        seq=1,
        at=time.time(),
        gpus=[
            wire.GpuUsage(
                uuid=gpu.uuid,
                core_percent=core_percent,
                memory_bytes=2 * GIB * MIB_BYTES,
                power_watts=120.5,
                temperature_celsius=61.0,
                sm_clock_mhz=1410,
                memory_clock_mhz=1215,
            )
            for gpu in machine.node.gpus.all()
        ],
        assignments=[
            wire.AssignmentUsage(
                uid=str(one.uid), core_percent=core_percent, memory_bytes=512 * MIB_BYTES, **facts | more
            )
            for one in assignments
        ],
    )


def store(machine: Machine, *assignments: Assignment, **facts: Any) -> None:
    tell(machine.node, store_use(machine, *assignments, **facts))


MOVED = wire.BorrowedMemory(
    borrowed_bytes=3 * MIB_BYTES,
    out_bytes=5 * MIB_BYTES,
    moved_bytes=7 * MIB_BYTES,
    moved_bytes_per_second=3.5 * MIB_BYTES,
    stood_ms=250.0,
    stood_percent=12.5,
)


@pytest.mark.parametrize("path", ["/metrics", "/metric"])
def test_only_an_operators_token_or_a_named_network_reads(cast: Cast, path: str, settings: Any) -> None:
    assert cast.olga.get(path).status == 200
    answer = cast.nobody.get(path)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert Api("gpc_no.such").get(path).status == 401
    assert (cast.anna.get(path).status, cast.anna.get(path).code) == (403, "role-missing")
    narrow = Api(token_for(None, scopes=["claims:read"]))
    assert narrow.get(path).code == "scope-missing"
    assert Api(token_for(None, scopes=["utilization:read"])).get(path).status == 200
    settings.METRICS_CIDRS = [ip_network("127.0.0.0/8")]
    assert cast.nobody.get(path).status == 200
    settings.METRICS_CIDRS = [ip_network("10.0.0.0/8")]
    assert cast.nobody.get(path).status == 401


def test_nobody_writes(cast: Cast) -> None:
    assert cast.olga.post("/metrics").status == 405


def test_gpu_managers_names_help_and_labels_are_exact(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine, name="train", core_request=30, memory_mib=2 * GIB, gpu_count=2)
    store(machine, *claim.assignments.all())
    told = scrape(cast.olga, "/metric")
    expected: dict[str, tuple[str, str, dict[str, float]]] = {
        "container_gpu_utilization": ("gpu utilization", "gpu", {"gpu0": 40, "gpu1": 40, "total": 80}),
        "container_gpu_memory_total": (
            "gpu memory usage in MiB", "gpu_memory", {"gpu0": 512, "gpu1": 512, "total": 1024},
        ),
        "container_request_gpu_utilization": ("request of gpu utilization", "req_of_gpu", {"total": 0.6}),
        "container_request_gpu_memory": ("request of gpu memory in MiB", "req_of_gpu_memory", {"total": 4 * GIB}),
    }  # fmt: skip
    pod = {"container_name": "train", "namespace": "acme", "node": "gpu1", "pod_name": str(claim.uid)}
    for name, (words, label, values) in expected.items():
        family = told.families[name]
        assert (family.type, family.documentation) == ("gauge", words)
        series = {tuple(sorted({**pod, label: gpu}.items())): value for gpu, value in values.items()}
        assert told.series(name) == pytest.approx(series)
    assert first.gpu.index == 0


def test_claims_below_their_guarantee_are_counted_by_tenant_and_pool(cast: Cast, machine: Machine) -> None:
    missed, _ = placed(cast, machine)
    placed(cast, machine, tenant=cast.globex)
    waiting = ask(cast, core_request=100, gpu_count=4)
    name = "gpucloud_claims_below_guarantee"

    def counted() -> dict[Any, float]:
        return scrape(cast.olga).series(name)

    of_acme, of_globex = ((("pool", "default"), ("tenant", tenant)) for tenant in ("acme", "globex"))
    assert counted() == {of_acme: 0, of_globex: 0}
    Claim.objects.filter(pk=missed.pk).update(below_guarantee_since=timezone.now())
    assert counted() == {of_acme: 1, of_globex: 0}
    assert waiting.state == "pending"


def test_devices_have_dcgm_exporters_names_and_labels(cast: Cast, machine: Machine) -> None:
    store(machine, core_percent=73.0)
    gpu = machine.gpu(2)
    Gpu.objects.filter(pk=gpu.pk).update(unhealthy="RemapPending, XID 79")
    told = scrape(cast.olga)
    labels = {"gpu": "2", "UUID": gpu.uuid, "device": "nvidia2", "modelName": gpu.model, "Hostname": "gpu1"}
    values = {
        "DCGM_FI_DEV_GPU_UTIL": 73,
        "DCGM_FI_DEV_FB_USED": 2 * GIB,
        "DCGM_FI_DEV_FB_FREE": 22 * GIB,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 120.5,
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_MEM_CLOCK": 1215,
        "DCGM_FI_DEV_XID_ERRORS": 79,
    }
    for name, value in values.items():
        assert told.value(name, **labels) == value
        assert len(told.series(name)) == 4
    assert (
        told.value("DCGM_FI_DEV_XID_ERRORS", **labels | {"gpu": "3", "UUID": machine.gpu(3).uuid, "device": "nvidia3"})
        == 0
    )


def test_what_was_not_heard_lately_is_not_told(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    told = scrape(cast.olga)
    assert told.series("container_gpu_utilization") == {}
    assert told.series("DCGM_FI_DEV_GPU_UTIL") == {}
    # Requested amounts need no measuring.
    assert [dict(labels)["pod_name"] for labels in told.series("container_request_gpu_memory")] == [str(claim.uid)]


def test_past_use_is_told_of_pools_that_remember(cast: Cast, machine: Machine) -> None:
    PastUse.objects.create(pool=cast.pool, tenant=cast.acme, core_percent=150, memory_mib=GIB)
    assert scrape(cast.olga).series("gpucloud_past_use_gpus") == {}
    cast.pool.change(fair_share="decayed")
    assert scrape(cast.olga).value("gpucloud_past_use_gpus", pool="default", tenant="acme") == 1.5


def test_the_platform_tells_pools_queues_nodes_quotas_and_claims(cast: Cast, machine: Machine) -> None:
    placed(cast, machine, core_request=30, memory_mib=8 * GIB)
    ask(cast, tenant=cast.globex)
    lost = Machine("gpu2", cast.pool)
    lose(lost)
    Node.objects.filter(pk=Machine("gpu3", cast.pool).node.pk).update(fenced_at=timezone.now())
    Gpu.objects.filter(pk=lost.gpu().pk).update(core_outside=20, memory_outside_mib=GIB)
    give(cast.acme, pool=cast.pool, vgpus=5)
    told = scrape(cast.olga)
    assert told.value("gpucloud_queue_claims", pool="default", state="pending") == 1
    assert told.value("gpucloud_queue_claims", pool="default", state="queued") == 0
    assert 0 < told.value("gpucloud_queue_oldest_seconds", pool="default") < 60
    assert told.value("gpucloud_claims", tenant="acme", pool="default", state="active") == 1
    for state in ("ready", "fenced"):
        assert told.value("gpucloud_nodes", pool="default", state=state) == 1
    assert told.value("gpucloud_nodes", pool="default", state="lost") == 1
    assert told.value("gpucloud_agents_connected") == 2
    assert told.value("gpucloud_gpus", pool="default") == 12
    assert told.value("gpucloud_core_percent_promised", pool="default") == 30
    assert told.value("gpucloud_core_percent_outside", pool="default") == 20
    assert told.value("gpucloud_memory_mib_promised", pool="default") == 8 * GIB
    assert told.value("gpucloud_memory_mib_outside", pool="default") == GIB
    assert told.value("gpucloud_quota_hard", tenant="acme", pool="*", resource="core_percent") == math.inf
    assert told.value("gpucloud_quota_hard", tenant="acme", pool="default", resource="vgpus") == 5
    assert told.value("gpucloud_quota_used", tenant="acme", pool="*", resource="core_percent") == 30
    assert told.value("gpucloud_quota_borrowed", tenant="acme", pool="*", resource="core_percent") == 0


def test_rounds_decisions_refusals_frames_and_latencies_are_counted(
    cast: Cast, machine: Machine, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        claim, assignment = placed(cast, machine)
    tell(machine.node, store_use(machine, assignment))
    told = scrape(cast.olga)
    assert told.value("gpucloud_rounds_total", pool="default") == 1
    assert told.value("gpucloud_round_seconds_count", pool="default") == 1
    assert told.value("gpucloud_decisions_total", pool="default", outcome="placed") == 1
    assert told.value("gpucloud_push_latency_seconds_count") == 1
    assert told.value("gpucloud_telemetry_frames_total") == 1
    assert told.value("gpucloud_telemetry_lag_seconds_count") == 1
    assert (
        told.value("gpucloud_claim_throttled_ratio", claim=str(claim.uid), name="train", node="gpu1", tenant="acme")
        == 0.25
    )


def test_a_request_is_counted_by_its_route_never_by_its_path(cast: Cast) -> None:
    for path in ("claims/", "nodes/no-such/", "/invented/by/somebody", "/invented/by/another"):
        cast.olga.get(path)
    requests = scrape(cast.olga).series("gpucloud_http_requests_total")
    told = {(dict(labels)["route"], dict(labels)["status"]): value for labels, value in requests.items()}
    assert told == {("/api/v1/claims/", "200"): 1, ("/api/v1/nodes/<slug:name>/", "404"): 1, ("/none", "404"): 2}


def test_what_webhooks_were_not_told_and_what_came_of_each_attempt(cast: Cast, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    assert scrape(cast.olga).value("gpucloud_webhook_oldest_seconds") == 0
    with receive() as receiver:
        for url in (receiver.url, "http://127.0.0.1:9/nobody"):
            hooks.create(principal=SYSTEM, tenant=cast.acme, url=url, events=["claim.active"])
        outbox.tell("claim.active", tenant=cast.acme)
        WebhookDelivery.objects.update(created_at=timezone.now() - timedelta(hours=2))
        assert scrape(cast.olga).value("gpucloud_webhook_messages_pending") == 2
        assert sending.deliver() == 2
    told = scrape(cast.olga)
    assert told.value("gpucloud_webhook_messages_pending") == 1
    assert 7200 <= told.value("gpucloud_webhook_oldest_seconds") < 7300
    assert told.value("gpucloud_webhook_attempts_total", outcome="delivered") == 1
    assert told.value("gpucloud_webhook_attempts_total", outcome="retried") == 1
    # A disabled one has no lag.
    Webhook.objects.update(enabled=False)
    assert scrape(cast.olga).value("gpucloud_webhook_messages_pending") == 0
    WebhookDelivery.objects.filter(state="pending").update(attempts=len(sending.WAITS), next_attempt_at=timezone.now())
    Webhook.objects.update(enabled=True, not_before=None)
    assert sending.deliver() == 1
    assert scrape(cast.olga).value("gpucloud_webhook_attempts_total", outcome="failed") == 1


def test_a_scrape_costs_the_same_queries_whatever_there_is(cast: Cast, machine: Machine) -> None:
    def cost() -> int:
        # A token's use is written down once a minute.
        Token.objects.update(last_used_at=timezone.now())
        with CaptureQueriesContext(connection) as asked:
            scrape(cast.olga)
        return len(asked)

    placed(cast, machine)
    cost()
    few = cost()
    for number in range(5):
        Machine(f"more{number}", tenants.create_pool(principal=SYSTEM, name=f"pool{number}"))
        _, assignment = placed(cast, machine, memory_mib=GIB, core_request=5)
        store(machine, assignment)
    assert cost() == few
    assert few <= 17


def test_more_devices_than_one_scrape_should_carry_are_left_to_the_agents(
    cast: Cast, machine: Machine, settings: Any
) -> None:
    _, assignment = placed(cast, machine)
    store(machine, assignment)
    assert scrape(cast.olga).value("gpucloud_details_left_out") == 0
    settings.METRICS_MOST_DETAILS = 3
    told = scrape(cast.olga)
    assert told.value("gpucloud_details_left_out") == 1
    assert told.series("DCGM_FI_DEV_GPU_UTIL") == told.series("container_request_gpu_memory") == {}
    assert told.value("gpucloud_gpus", pool="default") == 4


def test_borrowed_memory_is_told_of_claims_that_borrow(cast: Cast, machine: Machine) -> None:
    (claim, borrower), (_, owner) = (placed(cast, machine, core_request=10) for _ in range(2))
    usage = store_use(machine, borrower, owner)
    items = [structs.replace(one, borrowed=MOVED) if one.uid == str(borrower.uid) else one for one in usage.assignments]
    for seq in (1, 2):
        tell(machine.node, structs.replace(usage, seq=seq, assignments=items))
    told = scrape(cast.olga)
    labels = {"claim": str(claim.uid), "name": claim.name, "node": "gpu1", "tenant": "acme"}
    for name, mib in (("gpucloud_claim_memory_borrowed_bytes", 3), ("gpucloud_claim_memory_out_bytes", 5)):
        (sample,) = told.families[name].samples
        assert (sample.labels, sample.value) == (labels, mib * MIB_BYTES)
    assert told.value("gpucloud_memory_moved_bytes_total") == 14 * MIB_BYTES
    assert told.value("gpucloud_memory_stood_seconds_total") == 0.5


def test_agents_tell_the_same_names_helps_and_labels_as_the_server() -> None:
    assert {name: tuple(family) for name, family in shares.FAMILIES.items()} == agents.SHARES
    assert (shares.POD, shares.TOTAL) == (agents.POD, agents.TOTAL)
    assert (devices.FIELDS, devices.LABELS) == (agents.DEVICES, agents.DEVICE)


def test_every_name_in_dashboards_rules_and_alerts_is_in_a_scrape(
    cast: Cast, machine: Machine, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        _, assignment = placed(cast, machine)
        ask(cast, memory_mib=23 * GIB, gpu_count=4, core_request=100)
        run_round(cast.pool)
    tell(machine.node, store_use(machine, assignment, borrowed=MOVED))
    GpuHealth.objects.create(gpu=machine.gpu(), reported_at=timezone.now(), sm_active_percent=5, dram_active_percent=5)
    cast.olga.get("claims/")
    # Rare events have no series before the first.
    counters.POOLS_SET_ASIDE.add("default")
    counters.WEBHOOK_ATTEMPTS.add("failed")
    of_agents = {name for name in monitored.used_names() if name.startswith("gpucloud_agent_")}
    assert monitored.used_names() - of_agents - scrape(cast.olga).names() == set()
    facts = agents.Facts("n", "n", (), None, wire.Observed(frame=0, assignments=[]), None, True, 0, True, 0, 0, {})
    assert of_agents <= {sample.name for family in agents._agent_metrics(facts) for sample in family.samples}
    assert len(monitored.used_names()) > 25
