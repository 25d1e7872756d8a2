"""Faults of a GPU or its surroundings become conditions, and stay as long as they should."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import wire
from agent.host import environment_checks, xids
from agent.host.health import HOT_LOOKS, HW_THERMAL, Health, Verdict
from agent.host.health_metrics import HealthMetrics
from agent.wire import ConditionType
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, Stage
from tests.agent.test_limits import load
from tests.agent.test_reconcile import put

GPU = "GPU-00000000-0000-0000-0000-000000000000"
PATIENCE = 30.0


async def started(stage: Stage, **more: Any) -> Connection:
    """Start an agent with a recovery time of a second."""
    variables: dict[str, Any] = {"GPUCLOUD_HEALTH_HOLD_SECONDS": "1", **more}
    stage.start(**variables)
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    return link


async def wait_for_condition(
    link: Connection, kind: str, *, status: str = "False", gpu: str | None = None
) -> wire.Condition:
    """Return the condition as soon as it is reported so; only later reports count afterwards."""

    def found(frame: wire.Conditions) -> list[wire.Condition]:
        return [one for one in frame.conditions if (one.type, one.status, one.gpu_uuid) == (kind, status, gpu)]

    frame = await link.expect(wire.Conditions, lambda frame: bool(found(frame)), seconds=PATIENCE)
    link.forget()
    return found(frame)[0]


async def test_an_agent_tells_all_conditions_at_once_and_all_is_well(stage: Stage) -> None:
    link = await started(stage)
    # Those that need an audit, another driver, or a pool that wants MPS.
    others = {ConditionType.PROCESSES_LIMITED, ConditionType.KERNEL_LIMITS_SET, ConditionType.MPS_SERVING}
    well = {kind.value for kind in ConditionType} - others

    def complete(frame: wire.Conditions) -> bool:
        return {one.type for one in frame.conditions} >= well

    frame = await link.expect(wire.Conditions, complete, seconds=PATIENCE)
    assert [one for one in frame.conditions if one.status != "True"] == []
    assert {one.gpu_uuid for one in frame.conditions if one.type == "Reachable"} == set(stage.gpus)


async def test_an_xid_that_needs_a_reset_stays_until_an_operator_clears_it(stage: Stage, control: Control) -> None:
    link = await started(stage)
    await wait_for_condition(link, "NoXidErrors", status="True", gpu=stage.gpus[1])
    stage.fault(1, "xid=79")
    sick = await wait_for_condition(link, "NoXidErrors", gpu=stage.gpus[1])
    assert (sick.reason, sick.unschedulable) == ("Xid79", True)
    assert "fallen off the bus" in sick.message
    # Longer than recovery takes, and over a restart of the agent: it remembers.
    await stage.kill()
    link = await started(stage)
    again = await wait_for_condition(link, "NoXidErrors", gpu=stage.gpus[1])
    assert again.reason == "Xid79"
    await link.send(wire.Desired(frame=2, assignments=[], policy=wire.NodePolicy(cleared={stage.gpus[1]: time.time()})))
    assert (await wait_for_condition(link, "NoXidErrors", status="True", gpu=stage.gpus[1])).reason == "AsExpected"


async def test_an_xid_of_a_program_is_told_and_keeps_nobody_off(stage: Stage) -> None:
    link = await started(stage)
    await wait_for_condition(link, "NoXidErrors", status="True", gpu=stage.gpus[0])
    stage.fault(0, "xid=31")
    event = await link.expect(wire.Event, lambda event: event.code == "xid")
    assert "XID 31" in event.detail
    assert stage.gpus[0] in event.detail
    # Despite the accompanying events the GPU is healthy.
    stage.fault(1, "remap-pending=1")
    await wait_for_condition(link, "MemoryHealthy", gpu=stage.gpus[1])
    assert not [one for frame in link.frames if isinstance(frame, wire.Conditions)
                for one in frame.conditions if one.reason == "Xid31"]  # fmt: skip


async def test_a_lost_gpu_is_told_of_its_claims_stay_and_it_comes_back(stage: Stage) -> None:
    link = await started(stage)
    held = stage.assignment()
    await put(link, 1, held)
    program = await load(stage, held, "--kernel-us", "0", "--memory", "64MiB")
    stage.fault(0, "lost=1")
    lost = await wait_for_condition(link, "Reachable", gpu=stage.gpus[0])
    assert (lost.reason, lost.unschedulable) == ("GpuLost", True)
    assert program.poll() is None
    # Another connection's hello still has the GPU: its allocations are not forgotten.
    await link.socket.close(1000)
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    assert [gpu.uuid for gpu in hello.gpus] == stage.gpus
    stage.fault(0, "lost=0")
    # It returns with its links to the others, which a new hello reports.
    link = await stage.control.connection(PATIENCE)
    await wait_for_condition(link, "Reachable", status="True", gpu=stage.gpus[0])


# By GPU: the fault, its condition, and True if new claims are kept off.
FAULTS = [
    (0, "remap-failed", "MemoryHealthy", "RemapFailed", True),
    (1, "pages-pending", "MemoryHealthy", "RemapPending", True),
    (2, "ecc", "MemoryHealthy", "UncorrectedEcc", True),
    (3, "slowdown", "TemperatureOk", "HwThermalSlowdown", True),
    (0, "slowdown", "TemperatureOk", "SwThermalSlowdown", False),
]
AMOUNTS = {"UncorrectedEcc": 3, "HwThermalSlowdown": 64, "SwThermalSlowdown": 32}


async def test_what_nvml_counts_becomes_a_condition_and_ends(stage: Stage) -> None:
    """All at once: each GPU has its own fault, and an agent takes its time to start."""
    link = await started(stage)

    async def becomes(gpu: int, *wanted: object) -> None:
        def is_so(frame: wire.Conditions) -> bool:
            mine = [one for one in frame.conditions if one.gpu_uuid == stage.gpus[gpu]]
            return wanted in [(one.type, one.status, one.reason, one.unschedulable) for one in mine]

        await link.expect(wire.Conditions, is_so, seconds=PATIENCE)

    for gpu, _, kind, *_ in FAULTS:
        await becomes(gpu, kind, "True", "AsExpected", False)
    for gpu, fault, _, reason, _ in FAULTS:
        stage.fault(gpu, f"{fault}={AMOUNTS.get(reason, 1)}")
    for gpu, _, kind, reason, unschedulable in FAULTS:
        await becomes(gpu, kind, "False", reason, unschedulable)
    link.forget()
    for gpu, fault, *_ in FAULTS:
        # Counters never fall; a condition ends when its counter stops growing.
        if fault != "ecc":
            stage.fault(gpu, f"{fault}=0")
    for gpu, _, kind, *_ in FAULTS:
        await becomes(gpu, kind, "True", "AsExpected", False)


async def test_a_full_disk_a_missing_library_and_a_dead_arbiter_are_told(stage: Stage) -> None:
    directory = stage.state_dir.parent / "empty"
    directory.mkdir()
    for name in ("libvcuda.so", "libvcuda-pages.so"):
        (directory / name).symlink_to(BUILD / name)
    much = str(10**9)
    link = await started(stage, GPUCLOUD_LIBRARY=str(directory / "libvcuda.so"), GPUCLOUD_LEAST_FREE_MIB=much)
    assert (await wait_for_condition(link, "DiskSpace")).unschedulable
    (directory / "libvcuda.so").unlink()
    missing = await wait_for_condition(link, "LibraryPresent")
    assert (missing.reason, missing.unschedulable) == ("LibraryMissing", True)
    # There is no arbiter beside that library.
    down = await wait_for_condition(link, "ArbiterRunning")
    assert (down.reason, down.unschedulable) == ("ArbiterDown", False)
    (directory / "libvcuda.so").symlink_to(BUILD / "libvcuda.so")
    assert not (await wait_for_condition(link, "LibraryPresent", status="True")).unschedulable


async def test_a_driver_that_changes_under_running_claims_is_told_until_they_end(stage: Stage) -> None:
    link = await started(stage)
    held = stage.assignment()
    await put(link, 1, held)
    program = await load(stage, held, "--kernel-us", "0", "--memory", "64MiB")
    await wait_for_condition(link, "DriverHealthy", status="True")
    stage.change_driver("581.00")
    changed = await wait_for_condition(link, "DriverHealthy")
    assert (changed.reason, changed.unschedulable) == ("DriverChanged", True)
    assert "581.00" in changed.message
    program.kill()
    await wait_for_condition(link, "DriverHealthy", status="True")


async def test_a_clock_that_is_off_is_told_and_keeps_nobody_off(stage: Stage, control: Control) -> None:
    link = await started(stage)
    await wait_for_condition(link, "ClockInSync", status="True")
    control.clock_offset_seconds = 600
    await link.socket.close(1000)
    link = await control.connection()
    behind = await wait_for_condition(link, "ClockInSync")
    assert (behind.reason, behind.unschedulable) == ("ClockBehind", False)
    assert "600 s behind" in behind.message


def health(path: Path, boot: str = "one") -> Health:
    return Health(path / "health.json", hold_seconds=60, boot=boot)


def look(health_: Health, now: float, *, node: tuple[Verdict, ...] = (), **facts: Any) -> dict[str, wire.Condition]:
    health_.update([HealthMetrics(GPU, **facts)], node, now=now, at=1000 + now)
    return {one.type: one for one in health_.conditions}


def test_a_gpu_that_comes_and_goes_is_sick_until_it_stayed_well(tmp_path: Path) -> None:
    it = health(tmp_path)
    assert look(it, 0)["Reachable"].status == "True"
    assert look(it, 1, lost=True)["Reachable"].since == 1001
    for now in range(2, 61):
        assert look(it, now)["Reachable"].status == "False"
    # Lost once more: the time starts again, the condition is the same.
    assert look(it, 61, lost=True)["Reachable"].since == 1001
    assert look(it, 62)["Reachable"].status == "False"
    assert look(it, 121)["Reachable"].status == "False"
    assert (look(it, 122)["Reachable"].status, look(it, 123)["Reachable"].since) == ("True", 1122)


def test_an_xid_that_time_cures_ends_and_one_that_a_reset_cures_does_not(tmp_path: Path) -> None:
    assert (xids.cure(999), xids.cure(79), xids.cure(13)) == (xids.Cure.TIME, xids.Cure.RESET, xids.Cure.PROGRAM)
    it = health(tmp_path)
    assert look(it, 0, xids=(13,))["NoXidErrors"].status == "True"
    assert look(it, 1, xids=(999,))["NoXidErrors"].reason == "Xid999"
    assert look(it, 60)["NoXidErrors"].status == "False"
    assert look(it, 61)["NoXidErrors"].status == "True"
    assert look(it, 62, xids=(79,))["NoXidErrors"].unschedulable
    assert look(it, 100_000)["NoXidErrors"].reason == "Xid79"
    # Clearing affects the reported fault, not later ones.
    since = look(it, 100_001)["NoXidErrors"].since
    it.clear({GPU: since - 1})
    assert look(it, 100_002)["NoXidErrors"].status == "False"
    it.clear({GPU: since})
    assert look(it, 100_003)["NoXidErrors"].status == "True"


def test_a_wound_is_remembered_until_the_machine_starts_anew(tmp_path: Path) -> None:
    look(health(tmp_path), 0, xids=(95,))
    assert look(health(tmp_path), 0)["NoXidErrors"].reason == "Xid95"
    assert look(health(tmp_path, "two"), 0)["NoXidErrors"].status == "True"
    (tmp_path / "health.json").write_text("{")
    assert look(health(tmp_path), 0)["NoXidErrors"].status == "True"


def test_heat_counts_when_it_lasts(tmp_path: Path) -> None:
    it = health(tmp_path)
    seen = [look(it, now, clocks=HW_THERMAL)["TemperatureOk"].status for now in range(HOT_LOOKS)]
    assert seen == ["True"] * (HOT_LOOKS - 1) + ["False"]


def test_a_driver_that_does_not_answer_leaves_the_gpus_as_they_were(tmp_path: Path) -> None:
    it = health(tmp_path)
    look(it, 0, lost=True)
    it.update([], [Verdict(ConditionType.DRIVER_HEALTHY, "DriverHangs", "…")], now=100, at=100)
    assert {one.type: one.status for one in it.conditions} | {"Reachable": "False", "DriverHealthy": "False"} == {
        one.type: one.status for one in it.conditions
    }


def test_the_clock_is_off_by_what_was_set_since_the_server_told_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = environment_checks.Clock()
    assert clock.verdict() is None
    clock.record_server_time(time.time() + 2)
    verdict = clock.verdict()
    assert verdict is not None
    assert verdict.reason is None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    verdict = clock.verdict()
    assert verdict is not None
    assert verdict.reason == "ClockAhead"


def test_what_an_agent_tells_fits_into_a_frame(tmp_path: Path) -> None:
    it = health(tmp_path)
    uuids = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(wire.MAX_GPUS)]
    sick = [HealthMetrics(uuid, lost=True, xids=(79,), repair_failed=True, clocks=HW_THERMAL) for uuid in uuids]
    it.update(sick, [], now=0, at=0)
    text = wire.encode(wire.Conditions(conditions=it.conditions))
    assert len(text) < wire.MAX_FRAME_BYTES
    assert isinstance(wire.decode_from_agent(text), wire.Conditions)
    assert msgspec.json.decode(text)["type"] == "conditions"


def test_each_xid_is_treated_as_nvidias_catalogue_acts_on_it() -> None:
    """RESTART_APP and IGNORE; RESET_GPU, RESTART_BM, RESTART_VM, CHECK_MECHANICALS and the workflows; the rest."""
    program = {8, 11, 13, 25, 31, 32, *range(37, 42), 43, 44, 45, 60, 63, *range(66, 73), 75, 76, 77, 80}
    program |= {*range(82, 87), 88, 89, *range(92, 95), *range(96, 109), 121, *range(126, 136), 137, 139, 141}
    program |= {152, 153, 154, 157, 160, 161}
    reset = {46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 152), 155, 156, 158}
    by_cure = {cure: {number for number in range(1, 173) if xids.cure(number) is cure} for cure in xids.Cure}
    assert by_cure[xids.Cure.PROGRAM] == program
    assert by_cure[xids.Cure.RESET] == reset
    # Each has a message of its own.
    assert all("catalogue" not in xids.describe(number) for number in program | reset)
