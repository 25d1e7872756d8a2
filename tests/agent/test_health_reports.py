"""The slow readings of GPUs: temperature, ECC, the last XID, GPM's counters and processes, by the agent's own code."""

import asyncio
import subprocess
import sys
import time
from typing import Any

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import ROOT, Stage
from tests.agent.test_limits import load
from tests.agent.test_metrics import read
from tests.agent.test_reconcile import put
from tests.ports import free_port

GPM = ("sm_active_percent", "tensor_active_percent", "dram_active_percent")


async def started(stage: Stage, **more: Any) -> Connection:
    """Start an agent that reports often."""
    stage.start(GPUCLOUD_HEALTH_SECONDS="0.5", **more)
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    return link


def of_gpu(frame: wire.Health, uuid: str) -> wire.GpuHealth:
    return next(one for one in frame.gpus if one.uuid == uuid)


async def test_each_gpu_has_its_own_readings_and_none_where_the_card_has_none(stage: Stage) -> None:
    stage.fault(0, "ecc-corrected=5", "ecc=2")
    stage.fault(1, "no-ecc=1", "no-gpm=1")
    link = await started(stage)
    frame = await link.expect(wire.Health)
    first, second = of_gpu(frame, stage.gpus[0]), of_gpu(frame, stage.gpus[1])
    assert (first.ecc_corrected, first.ecc_uncorrected) == (5, 2)
    assert [getattr(first, name) for name in GPM] == [0.0, 0.0, 0.0]
    # None, which is not 0.
    assert (second.ecc_corrected, second.ecc_uncorrected) == (None, None)
    assert [getattr(second, name) for name in GPM] == [None, None, None]
    temperatures = [one.temperature_celsius for one in frame.gpus]
    assert all(one is not None and 20 < one < 60 for one in temperatures)
    assert len(set(temperatures)) > 1


async def test_a_program_is_listed_with_its_claim_and_moves_the_counters(stage: Stage) -> None:
    link = await started(stage)
    held = stage.assignment(core_limit=100)
    await put(link, 1, held)
    program = await load(stage, held, "--kernel-us", "1000", "--memory", "64MiB")

    def busy(frame: wire.Health) -> bool:
        return (of_gpu(frame, held.gpu_uuid).sm_active_percent or 0) > 20 and bool(frame.processes)

    frame = await link.expect(wire.Health, busy)
    one = of_gpu(frame, held.gpu_uuid)
    assert 0 < (one.tensor_active_percent or 0) < (one.sm_active_percent or 0)
    assert 0 < (one.dram_active_percent or 0) < (one.sm_active_percent or 0)
    (process,) = frame.processes
    assert (process.pid, process.command, process.gpu_uuid) == (program.pid, "gpuload", held.gpu_uuid)
    assert process.claim_uid == held.claim_uid
    assert (process.memory_bytes or 0) >= 64 << 20
    program.kill()
    link.forget()
    await link.expect(wire.Health, lambda frame: not frame.processes)


async def test_the_last_xid_is_reported_with_its_time_whatever_cures_it(stage: Stage) -> None:
    link = await started(stage)
    assert of_gpu(await link.expect(wire.Health), stage.gpus[1]).last_xid is None
    # Errors before the driver's event set exists are not told.
    await link.expect(wire.Conditions, lambda frame: any(one.type == "NoXidErrors" for one in frame.conditions))
    stage.fault(1, "xid=31")
    frame = await link.expect(wire.Health, lambda frame: of_gpu(frame, stage.gpus[1]).last_xid == 31)
    at = of_gpu(frame, stage.gpus[1]).last_xid_at
    assert abs((at or 0) - time.time()) < 60


async def test_a_lost_gpu_has_no_readings_and_the_others_have_theirs(stage: Stage) -> None:
    link = await started(stage)
    await link.expect(wire.Health)
    stage.fault(0, "lost=1")
    frame = await link.expect(wire.Health, lambda frame: of_gpu(frame, stage.gpus[0]).temperature_celsius is None)
    assert of_gpu(frame, stage.gpus[0]).ecc_uncorrected is None
    assert of_gpu(frame, stage.gpus[2]).temperature_celsius is not None


async def test_metrics_leave_out_what_a_card_does_not_have(stage: Stage, control: Control) -> None:
    stage.fault(0, "ecc-corrected=7", "ecc=1")
    stage.fault(1, "no-ecc=1", "no-gpm=1")
    port = free_port()
    link = await started(stage, GPUCLOUD_METRICS=str(port))
    await link.expect(wire.Health)
    await link.expect(wire.Usage)
    families = await asyncio.to_thread(read, port)

    def shown(name: str) -> dict[str, Any]:
        return {sample.labels["gpu"]: sample.value for sample in families[name].samples}

    assert shown("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL") == {"0": 7, "2": 0, "3": 0}
    assert shown("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL") == {"0": 1, "2": 0, "3": 0}
    for name in ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE"):
        assert shown(name) == {"0": 0, "2": 0, "3": 0}


def test_agent_gpus_prints_the_readings_of_this_machine(stage: Stage) -> None:
    stage.fault(1, "no-ecc=1", "no-gpm=1")
    stage.fault(2, "ecc-corrected=9")
    variables = stage.environment(
        GPUCLOUD_SIM_NODE=str(stage.node_file), GPUCLOUD_LIBRARY=str(ROOT / "libvcuda" / "build" / "libvcuda.so")
    )
    command = [sys.executable, "-m", "agent", "gpus", "--seconds", "0.3"]
    told = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = told.stdout.splitlines()
    assert lines[0].split()[:3] == ["GPU", "TEMP", "ECC"]
    assert lines[2].count("not available") == 2
    assert "9 corrected, 0 uncorrected" in lines[3]
    assert "SM 0 %, tensor 0 %, DRAM 0 %" in lines[3]


async def test_an_older_server_gets_no_health_reports_until_it_is_upgraded(stage: Stage, control: Control) -> None:
    """An older server's welcome does not say `health`, and it would end the connection at the first report."""
    control.takes_health = False
    link = await started(stage)
    await link.expect(wire.Usage, lambda frame: len([one for one in link.frames if isinstance(one, wire.Usage)]) >= 3)
    assert not any(isinstance(frame, wire.Health) for frame in link.frames)
    assert not link.closed.is_set()
    control.takes_health = True
    await link.socket.close(wire.CLOSE_BUSY, "upgraded")
    again = await control.connection()
    assert len((await again.expect(wire.Health)).gpus) == 4
