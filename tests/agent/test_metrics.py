"""The agent's own `/metrics`: a real agent, scraped as Prometheus does it."""

import asyncio
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from agent import metrics, wire
from agent.claims.meter import Counted
from agent.metrics import Facts
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, Stage
from tests.agent.test_reconcile import put
from tests.ports import free_port


def read(port: int, path: str = "/metrics") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


async def metrics_port(stage: Stage, control: Control) -> tuple[int, Connection]:
    """Return the metrics port of a started agent, and its connection."""
    port = free_port()
    stage.start(GPUCLOUD_METRICS=str(port))
    connection = await control.connection()
    hello = await connection.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return port, connection


async def test_claims_and_devices_have_the_names_of_gpu_manager_and_dcgm(stage: Stage, control: Control) -> None:
    port, link = await metrics_port(stage, control)
    held = stage.assignment(gpu=2, core_request=25, core_limit=75, claim_name="train")
    await put(link, 1, held)
    await link.expect(wire.Usage, lambda frame: [one.uid for one in frame.assignments] == [held.uid])
    families = await asyncio.to_thread(read, port)
    pod = {"container_name": "train", "namespace": "vision", "node": "sim-1", "pod_name": held.claim_uid}
    expected = {
        "container_gpu_utilization": ("gpu utilization", "gpu", {"gpu2": 0, "total": 0}),
        "container_gpu_memory_total": ("gpu memory usage in MiB", "gpu_memory", {"gpu2": 0, "total": 0}),
        "container_request_gpu_utilization": ("request of gpu utilization", "req_of_gpu", {"total": 0.25}),
        "container_request_gpu_memory": ("request of gpu memory in MiB", "req_of_gpu_memory", {"total": 4096}),
    }
    assert {name for name in families if name.startswith("container_")} == set(expected)
    for name, (words, label, values) in expected.items():
        family = families[name]
        assert (family.type, family.documentation) == ("gauge", words)
        assert {sample.labels[label]: sample.value for sample in family.samples} == values
        assert all({k: v for k, v in sample.labels.items() if k != label} == pod for sample in family.samples)
    free = {sample.labels["gpu"]: sample for sample in families["DCGM_FI_DEV_FB_FREE"].samples}
    assert set(free) == {"0", "1", "2", "3"}
    assert (free["2"].labels["UUID"], free["2"].labels["device"]) == (held.gpu_uuid, "nvidia2")
    assert set(free["2"].labels) == set(metrics.DEVICE)
    xid = {sample.labels["gpu"]: sample.value for sample in families["DCGM_FI_DEV_XID_ERRORS"].samples}
    assert xid == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert free["2"].value == 24 * GIB / (1 << 20)


async def test_the_last_xid_of_a_gpu_is_told_whatever_cures_it(stage: Stage, control: Control) -> None:
    port, link = await metrics_port(stage, control)
    stage.fault(3, "xid=79")
    await link.expect(wire.Event, lambda event: "XID 79" in event.detail)
    stage.fault(3, "xid=31")
    await link.expect(wire.Event, lambda event: "XID 31" in event.detail)
    (told,) = [
        sample.value
        for sample in (await asyncio.to_thread(read, port))["DCGM_FI_DEV_XID_ERRORS"].samples
        if sample.labels["gpu"] == "3"
    ]
    assert told == 31


async def test_the_agent_tells_of_itself_and_at_gpu_managers_path_too(stage: Stage, control: Control) -> None:
    port, link = await metrics_port(stage, control)
    await put(link, 9, stage.assignment())
    families = await asyncio.to_thread(read, port, "/metric")
    assert families["gpucloud_agent_connected"].samples[0].value == 1
    assert families["gpucloud_agent_frame"].samples[0].value == 9
    states = {sample.labels["state"]: sample.value for sample in families["gpucloud_agent_assignments"].samples}
    assert states == {"in_force": 1}
    await control.stop()
    async with asyncio.timeout(10):
        while families["gpucloud_agent_connected"].samples[0].value:
            families = await asyncio.to_thread(read, port)
    await control.start()


async def test_a_port_that_is_taken_keeps_no_limit_from_being_in_force(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_METRICS=str(control.port))
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    await put(link, 1, stage.assignment())
    assert "metrics-not-served" in stage.log_text()


async def test_an_address_that_makes_no_sense_stops_the_start(stage: Stage) -> None:
    stage.start(GPUCLOUD_METRICS="everywhere")
    assert await stage.ended() == 2
    assert "GPUCLOUD_METRICS=everywhere is neither a port nor HOST:PORT" in stage.log_text()


def test_borrowed_memory_is_told_with_its_sums() -> None:
    moved = wire.BorrowedMemory(
        borrowed_bytes=1, out_bytes=2, moved_bytes=3, moved_bytes_per_second=3.0, stood_ms=4.0, stood_percent=0.4
    )
    facts: dict[str, Any] = {"core_percent": 1, "core_limit_percent": 2, "throttled_percent": 3, "processes": 6}
    facts |= {"memory_bytes": 4, "memory_limit_bytes": 5}
    items = [wire.AssignmentUsage(uid="b", borrowed=moved, **facts), wire.AssignmentUsage(uid="a", **facts)]
    usage = wire.Usage(seq=1, at=1.0, gpus=[], assignments=items)
    observed = wire.Observed(frame=0, assignments=[])
    told = Facts("n", "n", (), None, observed, usage, True, 0, True, 0, 0, {}, counted={"b": Counted(9, 2_500_000_000)})
    samples = [sample for family in metrics._agent_metrics(told) for sample in family.samples]
    found = {one.name: (one.labels, one.value) for one in samples if one.name.startswith("gpucloud_agent_memory_")}
    assert found == {
        "gpucloud_agent_memory_borrowed_bytes": ({"assignment": "b"}, 1),
        "gpucloud_agent_memory_out_bytes": ({"assignment": "b"}, 2),
        "gpucloud_agent_memory_moved_bytes_total": ({"assignment": "b"}, 9),
        "gpucloud_agent_memory_stood_seconds_total": ({"assignment": "b"}, 2.5),
    }
