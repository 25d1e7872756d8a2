"""Claims of pools with the back ends mps and native: servers, variables, limits that change, falls, agents that die."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.check import devices
from agent.host import processes
from agent.host.mps import find_groups, find_left, find_servers
from agent.host.mps_places import Places, TrustGroup, places, read_fall
from tests.agent.control import Connection, Control
from tests.agent.stage import GPULOAD, Stage, eventually
from tests.agent.test_reconcile import changed, put

LOAD = (str(GPULOAD), "--json", "--interval", "0.2")
PRINT = ("/usr/bin/env",)


async def begin(stage: Stage, **more: Any) -> tuple[Connection, wire.Hello]:
    stage.start(**more)
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return link, hello


def place_of(stage: Stage, held: wire.Assignment) -> Places:
    return places(stage.run_dir / "mps", TrustGroup(held.gpu_uuid, held.tenant))


def daemon_of(stage: Stage, held: wire.Assignment) -> Any:
    pid = json.loads(place_of(stage, held).record.read_text())["pid"]
    return processes.find(pid)


async def share_of(stage: Stage, held: wire.Assignment, seconds: float = 1.5) -> float:
    """Return the percent of the GPU that the claim's page is charged over this time."""
    before, begun = stage.totals(held).gpu_time_ns, time.monotonic()
    await asyncio.sleep(seconds)
    return (stage.totals(held).gpu_time_ns - before) / (time.monotonic() - begun) / 1e7


async def variables(stage: Stage, held: wire.Assignment) -> dict[str, str]:
    code, out, error = await stage.executed(held.claim_uid, *PRINT)
    assert code == 0, error
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


async def load(stage: Stage, held: wire.Assignment) -> Any:
    """Start a program that always wants the GPU, as a client of the group's server."""
    before = stage.totals(held).gpu_time_ns
    program = stage.exec(held.claim_uid, *LOAD)
    await eventually(lambda: stage.totals(held).gpu_time_ns > before)
    return program


async def test_the_whole_life_of_a_claim_under_mps(stage: Stage, control: Control) -> None:
    link, hello = await begin(stage)
    assert hello.backends == ["native", "mps"]
    held = stage.assignment(core_request=30, core_limit=30, backend="mps")
    await put(link, 1, held)
    place = place_of(stage, held)
    # 1. Started: its variables, and a program that runs all the time and counts as its part.
    found = await variables(stage, held)
    assert found["CUDA_MPS_PIPE_DIRECTORY"] == str(place.pipe)
    assert found["CUDA_MPS_LOG_DIRECTORY"] == str(place.log)
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    program = await load(stage, held)
    # A busy machine may hold the program up; more than its part it never gets.
    assert 10 < await share_of(stage, held) < 33
    # 2. Resized while it runs: less by credit; a program that starts now gets the new part.
    held = changed(held, generation=2, core_request=10, core_limit=10)
    await put(link, 2, held)
    assert 6 < await share_of(stage, held) < 13
    assert (await variables(stage, held))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "10"
    held = changed(held, generation=3, core_request=60, core_limit=60)
    await put(link, 3, held)
    assert 20 < await share_of(stage, held) < 33, "a running client keeps its part"
    program = await daemon_dies(stage, link, held, program)
    await agent_dies_and_claim_is_released(stage, held, program)


async def daemon_dies(stage: Stage, link: Connection, held: wire.Assignment, program: Any) -> Any:
    """Kill the control daemon: it is back in five seconds, and the claim that fell is named."""
    place = place_of(stage, held)
    killed, begun = daemon_of(stage, held), time.monotonic()
    processes.send(killed, signal.SIGKILL)
    event = await link.expect(wire.Event, lambda frame: frame.code == "mps-daemon-ended")
    assert held.claim_uid in event.detail
    assert str(program.pid) in event.detail
    assert await asyncio.to_thread(program.wait, 20) != 0
    await eventually(lambda: place.record.exists() and daemon_of(stage, held) not in (None, killed))
    await eventually(place.socket.exists)
    assert time.monotonic() - begun < 5
    return await load(stage, held)


async def agent_dies_and_claim_is_released(stage: Stage, held: wire.Assignment, program: Any) -> None:
    """Kill the agent: server and program go on, and the next agent adopts them, and ends them with the claim."""
    place = place_of(stage, held)
    daemon = daemon_of(stage, held)
    await stage.kill()
    assert 35 < await share_of(stage, held, 1.0) < 66, "its limits stay"
    link, _ = await begin(stage)
    await put(link, 4, held)
    assert daemon_of(stage, held) == daemon
    assert program.poll() is None
    await link.send(wire.Desired(frame=5, assignments=[changed(held, present=False)]))
    await link.state(held.uid, "released", 3)
    await link.send(wire.Desired(frame=6, assignments=[]))
    await eventually(lambda: not place.root.exists())
    assert not processes.alive(daemon)
    assert not find_left(place.pipe)
    assert program.wait() == 0, "it was asked to end, and its server lived until then"


async def test_tenants_of_one_gpu_have_servers_of_their_own(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    mine, also_mine = (stage.assignment(core_request=30, core_limit=30, backend="mps") for _ in range(2))
    other = stage.assignment(core_request=30, core_limit=30, backend="mps", tenant="audio")
    await put(link, 1, mine, also_mine, other)
    programs = [await load(stage, one) for one in (mine, also_mine, other)]
    assert find_groups(stage.run_dir / "mps").keys() == {
        TrustGroup(mine.gpu_uuid, "vision"),
        TrustGroup(mine.gpu_uuid, "audio"),
    }
    (server,) = find_servers(daemon_of(stage, mine))
    processes.send(server, signal.SIGKILL)
    event = await link.expect(wire.Event, lambda frame: frame.code == "mps-server-ended")
    assert mine.claim_uid in event.detail
    assert also_mine.claim_uid in event.detail
    assert other.claim_uid not in event.detail
    for program in programs[:2]:
        assert await asyncio.to_thread(program.wait, 20) != 0
    await asyncio.sleep(0.5)
    assert programs[2].poll() is None
    await load(stage, mine)


async def test_all_tenants_of_a_gpu_share_a_server_where_their_pool_says_so(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    mine = stage.assignment(core_request=30, core_limit=30, backend="mps", trust_group=wire.ALL_TENANTS)
    other = stage.assignment(
        core_request=30, core_limit=30, backend="mps", trust_group=wire.ALL_TENANTS, tenant="audio"
    )
    await put(link, 1, mine, other)
    programs = [await load(stage, one) for one in (mine, other)]
    (group,) = find_groups(stage.run_dir / "mps")
    assert group == TrustGroup(mine.gpu_uuid, wire.ALL_TENANTS)
    daemon: Any = processes.find(json.loads(places(stage.run_dir / "mps", group).record.read_text())["pid"])
    (server,) = find_servers(daemon)
    # The agent looks at servers and their clients twice a second.
    await asyncio.sleep(0.7)
    processes.send(server, signal.SIGKILL)
    event = await link.expect(wire.Event, lambda frame: frame.code == "mps-server-ended")
    assert "of all tenants on GPU-" in event.detail
    assert mine.claim_uid in event.detail
    assert other.claim_uid in event.detail
    assert event.fallen == sorted([mine.claim_uid, other.claim_uid])
    fall = read_fall(places(stage.run_dir / "mps", group))
    assert fall is not None
    assert other.claim_uid in fall[1]
    for program in programs:
        assert await asyncio.to_thread(program.wait, 20) != 0


async def test_a_fatal_fault_takes_the_groups_other_programs_down(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    mine, other = stage.assignment(backend="mps"), stage.assignment(backend="mps", tenant="audio")
    await put(link, 1, mine, other)
    beside, elsewhere = await load(stage, mine), await load(stage, other)
    trapped = stage.exec(mine.claim_uid, *LOAD, GPUCLOUD_SIM_FAULTS="cuLaunchKernel:20=!719")
    event = await link.expect(wire.Event, lambda frame: frame.code == "mps-client-fault")
    assert "of tenant vision on GPU-" in event.detail
    assert mine.claim_uid in event.detail
    assert str(beside.pid) in event.detail
    assert other.claim_uid not in event.detail
    assert await asyncio.to_thread(trapped.wait, 20) != 0
    assert await asyncio.to_thread(beside.wait, 20) != 0
    assert elsewhere.poll() is None
    await load(stage, mine)


async def test_without_the_control_daemon_nothing_starts_and_the_node_says_why(stage: Stage, control: Control) -> None:
    link, hello = await begin(stage, GPUCLOUD_MPS_CONTROL="off")
    assert hello.backends == ["native"]
    held = stage.assignment(backend="mps")
    await link.send(wire.Desired(frame=1, policy=wire.NodePolicy(backend="mps"), assignments=[held]))
    frame = await link.expect(wire.Conditions, lambda frame: any(one.type == "MpsServing" for one in frame.conditions))
    (condition,) = [one for one in frame.conditions if one.type == "MpsServing"]
    assert (condition.status, condition.reason, condition.unschedulable) == ("False", "NoMpsControl", True)
    assert "cannot serve back end mps: nvidia-cuda-mps-control is not on the PATH" in condition.message
    await link.state(held.uid, "in_force", 1)
    code, _, error = await stage.executed(held.claim_uid, *PRINT)
    assert code == 125
    assert "cannot serve back end mps" in error
    assert not (stage.claim_dir(held) / "env").exists()


async def test_containers_get_the_sockets_and_the_part_that_is_the_limit_now(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    held = stage.assignment(core_request=30, core_limit=30, backend="mps")
    await put(link, 1, held)
    pipe = str(place_of(stage, held).pipe)
    spec = stage.run_dir / "cdi" / f"gpucloud.io-vgpu_{held.claim_uid}.json"
    await eventually(spec.exists)
    edits = json.loads(spec.read_text())["devices"][0]["containerEdits"]
    (mount,) = [one for one in edits["mounts"] if one["hostPath"] == pipe]
    assert mount["containerPath"] == pipe
    assert "rw" not in mount["options"]
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipe}" in edits["env"]
    file = stage.claim_dir(held) / "env"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30\n" in file.read_text()
    await put(link, 2, changed(held, generation=2, core_request=1, core_limit=1))
    await eventually(lambda: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=1\n" in file.read_text())


@pytest.mark.skipif(os.getuid() != 0, reason="only root serves several users")
async def test_only_users_with_programs_under_the_group_reach_its_sockets(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    held = stage.assignment(backend="mps")
    await put(link, 1, held)
    place = place_of(stage, held)
    await eventually(place.socket.exists)
    assert place.root.stat().st_mode & 0o777 == 0o700
    await variables(stage, held)
    os.chown(stage.claim_dir(held) / "usage", 61001, 61001)
    await variables(stage, held)
    assert (61001).to_bytes(4, "little") in _list_of(place.root), "its program may connect at once"
    os.chown(stage.claim_dir(held) / "usage", 61002, 61002)
    await eventually(lambda: (61002).to_bytes(4, "little") in _list_of(place.root))


def _list_of(path: Path) -> bytes:
    try:
        return os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return b""


async def test_native_claims_get_no_turns_and_keep_their_limits(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    first, second = (stage.assignment(core_request=20, core_limit=20, backend="native") for _ in range(2))
    await put(link, 1, first, second)
    assert (slot := stage.slot(first)) is not None
    assert slot.backend == "native"
    assert not any(name.startswith("CUDA_MPS") for name in await variables(stage, first))
    assert not (stage.run_dir / "mps").exists()


async def test_check_knows_the_daemons(stage: Stage, control: Control) -> None:
    link, _ = await begin(stage)
    held = stage.assignment(backend="mps")
    await put(link, 1, held)
    await eventually(place_of(stage, held).socket.exists)
    answer = await stage.ask(b'{"ask":"check"}\n')
    checks = {one["name"]: one for one in answer["checks"]}
    assert checks["mps"]["state"] == "ok"
    assert "1 daemon running" in checks["mps"]["detail"]


def test_the_agents_own_daemons_are_no_other_software(tmp_path: Path) -> None:
    for pid in (7, 8):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "comm").write_text("nvidia-cuda-mps\n")
    assert devices.others(tmp_path, own={7, 8}).state == "ok"
    assert "NVIDIA MPS" in devices.others(tmp_path, own={7}).detail
