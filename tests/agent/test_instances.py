"""MIG instances: made for a claim, used by its programs, removed after them; whatever moment the agent is killed at."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from agent import wire
from agent.instance_keeper import RETRY_SECONDS
from agent.kubelet.devices import CORE
from agent.launch import cdi
from tests.agent import forked, resource_claims
from tests.agent.control import Connection, Control
from tests.agent.kubelet import Kubelet, resolve
from tests.agent.plugin_watcher import PluginWatcher
from tests.agent.stage import BUILD, GIB, GPULOAD, Stage, eventually
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

H200 = ("--model", "NVIDIA H200", "--mig", "0")
SMALL = wire.MigPlace(profile="1g.18gb", start=6, size=1)
LARGE = wire.MigPlace(profile="4g.71gb", start=0, size=4)
# Runs the agent with one call of NVML, or one write of the journal, at which it kills itself: before or after it.
KILLED_AT = """
import os, runpy, signal, sys
name, when = sys.argv[1:3]
del sys.argv[1:3]
import pynvml
from agent.claims.instances import Instances
home = Instances if hasattr(Instances, name) else pynvml
real = getattr(home, name)
def killed(*values, **named):
    # The second write completes the record; the first is the intent.
    if name == "put" and values[1].phase != "made":
        return real(*values, **named)
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = real(*values, **named)
    if when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(home, name, killed)
runpy.run_module("agent", run_name="__main__", alter_sys=True)
"""
MAKING = [
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "before"),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "after"),
    ("nvmlGpuInstanceCreateComputeInstance", "before"),
    ("nvmlGpuInstanceCreateComputeInstance", "after"),
    ("put", "before"),
    ("put", "after"),
]
REMOVING = [
    ("nvmlComputeInstanceDestroy", "before"),
    ("nvmlComputeInstanceDestroy", "after"),
    ("nvmlGpuInstanceDestroy", "before"),
    ("nvmlGpuInstanceDestroy", "after"),
    ("drop", "before"),
    ("drop", "after"),
]


@pytest.fixture
async def divided(tmp_path: Path, run_dir: Path, control: Control) -> AsyncIterator[Stage]:
    """Return a node of two GPUs, the first of them in MIG mode, whose agent is not started yet."""
    it = Stage(tmp_path, run_dir, control, gpus=2, agents=forked.server(), shape=H200)
    yield it
    it.close()


async def connect(stage: Stage) -> Connection:
    """Wait for the agent's next connection."""
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return link


@pytest.fixture
async def instances(divided: Stage) -> Connection:
    """Return the connection of the node's agent."""
    divided.start()
    return await connect(divided)


def instances_of(stage: Stage) -> dict[str, str]:
    """Return the instances that the driver has, by place: `4:4` with the name of its device, or `-`."""
    shown = subprocess.run([BUILD / "simnode", "show", stage.node_file], capture_output=True, text=True, check=True)
    found = re.findall(r"^  instance \d+ (\S+) .* at (\d+:\d+)", shown.stdout, re.MULTILINE)
    return {place: device for device, place in found}


def hard(stage: Stage, place: wire.MigPlace = SMALL, **more: Any) -> wire.Assignment:
    """Return a new claim's assignment of an instance of the first GPU."""
    return stage.assignment(mig=place, core_request=14, core_limit=14, memory_bytes=16 * GIB, **more)


def set_mode(stage: Stage, *, gpu: int, mode: int) -> str:
    """Change the mode of a GPU as an operator does; return why it was refused, empty if it was not."""
    command = [str(BUILD / "simnode"), "mig", str(stage.node_file), str(gpu), str(mode)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def run_nvml(stage: Stage, *lines: str) -> None:
    """Call NVML as an operator does by nvidia-smi; `gpu` is the first GPU."""
    script = [
        "import ctypes, pynvml as n, sys",
        "ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)",
        "n.nvmlInit()",
        "gpu = n.nvmlDeviceGetHandleByIndex(0)",
        *lines,
    ]
    library = str(BUILD / "sim" / "libnvidia-ml.so.1")
    environment = os.environ | {"GPUCLOUD_SIM_NODE": str(stage.node_file)}
    subprocess.run([sys.executable, "-c", "\n".join(script), library], env=environment, check=True, capture_output=True)


def make_by_hand(stage: Stage, profile_id: int) -> None:
    """Make an instance that is nobody's."""
    run_nvml(stage, f"n.nvmlDeviceCreateGpuInstance(gpu, {profile_id})")


async def test_the_hello_describes_a_gpu_in_mig_mode(divided: Stage) -> None:
    divided.start()
    hello = await (await divided.control.connection()).expect(wire.Hello)
    first, second = hello.gpus
    assert second.mig is UNSET
    # The driver moves programs between whole GPUs only.
    assert hello.move is UNSET
    assert isinstance(first.mig, wire.Mig)
    assert first.mig.foreign == []
    profiles = {
        one.name: (one.compute_slices, one.memory_bytes >> 20, one.size, one.starts) for one in first.mig.profiles
    }
    # NVIDIA's MIG user guide, H200: profiles, memory and placements. Those with media engines are left out.
    assert profiles == {
        "1g.18gb": (1, 16384, 1, [0, 1, 2, 3, 4, 5, 6]),
        "1g.35gb": (1, 33280, 2, [0, 2, 4, 6]),
        "2g.35gb": (2, 33280, 2, [0, 2, 4]),
        "3g.71gb": (3, 71168, 4, [0, 4]),
        "4g.71gb": (4, 71168, 4, [0]),
        "7g.141gb": (7, 143360, 8, [0]),
    }


async def test_a_mode_that_an_operator_changes_is_told_by_a_new_hello(divided: Stage, instances: Connection) -> None:
    held = hard(divided)
    await put(instances, 1, held)
    assert "in use" in set_mode(divided, gpu=0, mode=0)
    assert not set_mode(divided, gpu=1, mode=1)
    hello = await (await divided.control.connection()).expect(wire.Hello)
    assert [isinstance(gpu.mig, wire.Mig) for gpu in hello.gpus] == [True, True]


async def test_the_self_check_says_what_is_divided_and_by_whom(divided: Stage) -> None:
    make_by_hand(divided, 5)
    divided.start()
    hello = await (await divided.control.connection()).expect(wire.Hello)
    (found,) = [check for check in hello.checks if check.name == "mig"]
    words = "GPU 0 in MIG mode, for claims with hard isolation; 1 instances that others made are left alone"
    assert (found.state, found.detail) == ("ok", words)


async def test_a_claim_has_an_instance_while_it_lives_and_its_programs_run_in_it(
    divided: Stage, instances: Connection
) -> None:
    held = hard(divided)
    await put(instances, 1, held)
    made = instances_of(divided)
    assert list(made) == ["6:1"]
    slot = divided.slot(held)
    assert slot is not None
    # The page names the instance, all of which the claim has.
    assert (f"MIG-{slot.gpu}", slot.core_request, slot.core_limit) == (made["6:1"], 100, 100)
    code, out, _ = await divided.executed(held.claim_uid, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (code, out.strip()) == (0, made["6:1"])
    assert f"CUDA_VISIBLE_DEVICES={made['6:1']}\n" in (divided.claim_dir(held) / "env").read_text()
    program = await load(divided, held, "--memory", "1GiB")
    await eventually(lambda: divided.totals(held).processes == 1)
    await instances.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, present=False)]))
    await instances.state(held.uid, "released", 2)
    # Released means that the instance is gone, and so are its programs.
    assert instances_of(divided) == {}
    await asyncio.to_thread(program.wait, 10)
    assert json.loads((divided.run_dir / "instances.json").read_text()) == []


async def test_usage_is_told_in_percent_of_the_gpu(divided: Stage, instances: Connection) -> None:
    held = hard(divided)
    await put(instances, 1, held)
    await load(divided, held)

    def busy(frame: wire.Usage) -> bool:
        return any(one.uid == held.uid and one.core_percent > 5 for one in frame.assignments)

    usage = await instances.expect(wire.Usage, busy)
    (mine,) = usage.assignments
    assert mine.core_limit_percent == 14
    assert 5 < mine.core_percent <= 15
    # NVML has no figure of the GPU itself.
    assert usage.gpus[0].core_percent == mine.core_percent


async def test_two_instances_are_made_side_by_side(divided: Stage, instances: Connection) -> None:
    one, other = hard(divided), hard(divided, LARGE)
    await put(instances, 1, one, other)
    assert sorted(instances_of(divided)) == ["0:4", "6:1"]


async def test_a_share_is_refused_on_a_gpu_in_mig_mode(divided: Stage, instances: Connection) -> None:
    held = divided.assignment()
    await instances.send(wire.Desired(frame=1, assignments=[held]))
    seen = await instances.state(held.uid, "failed")
    assert "is in MIG mode" in (seen.reason or "")


async def test_an_instance_that_is_not_ours_is_told_kept_and_said_to_be_in_the_way(divided: Stage) -> None:
    make_by_hand(divided, 5)
    divided.start()
    link = await divided.control.connection()
    hello = await link.expect(wire.Hello)
    divided.gpus = [gpu.uuid for gpu in hello.gpus]
    assert isinstance(hello.gpus[0].mig, wire.Mig)
    assert hello.gpus[0].mig.foreign == [LARGE]
    held, beside = hard(divided, LARGE), hard(divided)
    await link.send(wire.Desired(frame=1, assignments=[held, beside]))
    seen = await link.state(held.uid, "failed")
    assert "an instance that this agent did not make is in its place" in (seen.reason or "")
    await link.state(beside.uid, "in_force")
    # It is tried again and again, and logged once.
    await asyncio.sleep(3 * RETRY_SECONDS)
    assert divided.log_text().count("event=instance-not-as-wanted") == 1
    gone = [changed(one, generation=2, present=False) for one in (held, beside)]
    await link.send(wire.Desired(frame=2, assignments=gone))
    for one in gone:
        await link.state(one.uid, "released", 2)
    assert list(instances_of(divided)) == ["0:4"]


async def test_an_instance_that_somebody_makes_later_is_told_by_a_new_hello(
    divided: Stage, instances: Connection
) -> None:
    make_by_hand(divided, 5)
    # The agent looks when it has something to do, and every ten seconds.
    await instances.send(wire.Desired(frame=1, assignments=[hard(divided)]))
    hello = await (await divided.control.connection()).expect(wire.Hello)
    assert isinstance(hello.gpus[0].mig, wire.Mig)
    assert hello.gpus[0].mig.foreign == [LARGE]


@pytest.mark.parametrize(("step", "when"), MAKING)
async def test_an_agent_killed_while_it_makes_an_instance_leaves_one_that_the_next_completes(
    divided: Stage, step: str, when: str
) -> None:
    divided.start(code=KILLED_AT, arguments=(step, when))
    link = await connect(divided)
    held = hard(divided)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    assert await divided.ended() == -9
    divided.start()
    await put(await connect(divided), 1, held)
    assert list(instances_of(divided)) == ["6:1"]


@pytest.mark.parametrize(("step", "when"), MAKING)
async def test_an_instance_that_is_no_longer_wanted_after_such_a_kill_is_removed(
    divided: Stage, step: str, when: str
) -> None:
    divided.start(code=KILLED_AT, arguments=(step, when))
    link = await connect(divided)
    held = hard(divided)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    assert await divided.ended() == -9
    divided.start()
    link = await connect(divided)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, present=False)]))
    await link.state(held.uid, "released", 2)
    assert instances_of(divided) == {}


@pytest.mark.parametrize(("step", "when"), REMOVING)
async def test_an_agent_killed_while_it_removes_an_instance_leaves_nothing_after_the_next(
    divided: Stage, step: str, when: str
) -> None:
    divided.start(code=KILLED_AT, arguments=(step, when))
    link = await connect(divided)
    held = hard(divided)
    await put(link, 1, held)
    gone = changed(held, generation=2, present=False)
    await link.send(wire.Desired(frame=2, assignments=[gone]))
    assert await divided.ended() == -9
    divided.start()
    link = await connect(divided)
    await link.send(wire.Desired(frame=2, assignments=[gone]))
    await link.state(held.uid, "released", 2)
    assert instances_of(divided) == {}
    assert json.loads((divided.run_dir / "instances.json").read_text()) == []


async def test_an_instance_that_somebody_removes_is_made_again_and_told(divided: Stage, instances: Connection) -> None:
    held = hard(divided)
    await put(instances, 1, held)
    before = instances_of(divided)
    run_nvml(
        divided,
        "instance = n.nvmlDeviceGetGpuInstanceById(gpu, 1)",
        "n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, 0))",
        "n.nvmlGpuInstanceDestroy(instance)",
    )
    assert instances_of(divided) == {}
    event = await instances.expect(wire.Event, lambda one: one.code == "instance-gone")
    assert before["6:1"] in event.detail
    await eventually(lambda: instances_of(divided) == before)
    code, _, _ = await divided.executed(held.claim_uid, str(GPULOAD), "--memory", "1GiB", "--seconds", "0.2")
    assert code == 0


async def test_control_without_the_record_such_an_instance_is_nobodys_and_stays(divided: Stage) -> None:
    divided.start(code=KILLED_AT, arguments=("nvmlGpuInstanceCreateComputeInstance", "after"))
    link = await connect(divided)
    held = hard(divided)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    assert await divided.ended() == -9
    (divided.run_dir / "instances.json").unlink()
    divided.start()
    link = await connect(divided)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, present=False)]))
    await link.state(held.uid, "released", 2)
    assert list(instances_of(divided)) == ["6:1"]


async def test_a_killed_agent_leaves_running_programs_and_their_instance(divided: Stage, instances: Connection) -> None:
    held = hard(divided)
    await put(instances, 1, held)
    before = instances_of(divided)
    program = await load(divided, held)
    await divided.kill()
    divided.start()
    await put(await connect(divided), 1, held)
    assert instances_of(divided) == before
    assert program.poll() is None


async def test_containers_get_the_device_nodes_of_their_instance_alone(tmp_path: Path) -> None:
    """The driver names them: /proc/driver/nvidia/capabilities/gpu0/mig/gi3/access says `DeviceFileMinor: 30`."""
    for part, number in (("gi3", 30), ("gi3/ci0", 31), ("gi4", 39)):
        access = tmp_path / "gpu0" / "mig" / part / "access"
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    found = cdi.capability_nodes(0, 3, 0, capabilities=tmp_path)
    assert found == ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert cdi.capability_nodes(1, 3, 0, capabilities=tmp_path) == []


async def test_the_kubelet_is_offered_no_share_of_a_gpu_in_mig_mode(divided: Stage, kubelet: Kubelet) -> None:
    divided.start(**kubelet.settings)
    await kubelet.knows_both()
    offered = kubelet.plugins[CORE].devices
    await eventually(lambda: {*offered.values()} == {"Healthy", "Unhealthy"})
    closed = {int(one.rpartition("-")[2]) for one, health in offered.items() if health == "Unhealthy"}
    assert closed == set(range(100))


async def test_a_resource_claim_of_an_instance_is_prepared_when_the_instance_is_made(
    divided: Stage, watcher: PluginWatcher
) -> None:
    """kube-scheduler chose the place, as a device of the GPU's own pool."""
    divided.start(**resource_claims.settings_of(watcher))
    link = await connect(divided)
    driver, key = await resource_claims.registered(watcher), resource_claims.resource_claim()
    gpu = divided.gpus[0].lower()
    held = wire.ResourceClaim(
        namespace=key[0], name=key[1], uid=key[2], pool=f"{resource_claims.NODE}/{gpu}",
        device=f"{gpu}-mig-4g-71gb-0", request="container-0-request-0",
    )  # fmt: skip
    wanted = hard(divided, LARGE, resource_claim=held)
    preparing = asyncio.ensure_future(driver.prepare(key))
    await put(link, 1, wanted)
    answer = (await preparing)[key[2]]
    assert not answer.error
    [device] = answer.devices
    assert (device.pool_name, device.device_name) == (held.pool, held.device)
    assert list(device.request_names) == ["container-0-request-0"]
    edits = resolve(device.cdi_device_ids[0], divided.run_dir / "cdi")
    assert f"CUDA_VISIBLE_DEVICES={instances_of(divided)['0:4']}" in edits.env
