"""The agent as a device plugin of a kubelet: real gRPC over real Unix sockets, a real agent, the simulated driver."""

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio

from agent import metrics, wire
from agent.kubelet.devices import BLOCK_BYTES, CORE, MEMORY
from agent.kubelet.proto import deviceplugin_pb2 as pb
from tests.agent import containers
from tests.agent.control import Connection
from tests.agent.kubelet import Container, Kubelet, claim_of
from tests.agent.stage import Stage, eventually
from tests.agent.test_launch_methods import LOAD, check_limits, needs_namespaces, needs_root, start
from tests.agent.test_metrics import read
from tests.agent.test_reconcile import put
from tests.ports import free_port

# Of one virtual GPU of 24 GiB.
BLOCKS = 96


def place(stage: Stage, one: Container, gpu: int = 0, **more: Any) -> wire.Assignment:
    """Place the container as the scheduler decided."""
    pod = wire.Pod(namespace=one.namespace, name=one.pod, container=one.name)
    limits = {"core_request": one.core, "core_limit": one.core, "memory_bytes": one.blocks * BLOCK_BYTES}
    return stage.assignment(gpu=gpu, **limits, pod=pod, **more)


async def refused(call: Any) -> str:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
    return str(caught.value.details())


async def test_both_resources_are_registered_with_every_share_of_every_gpu(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    assert {one.resource_name for one in kubelet.registrations} == {CORE, MEMORY}
    assert {one.version for one in kubelet.registrations} == {"v1beta1"}
    assert all(one.options.pre_start_required for one in kubelet.registrations)
    cores, memory = kubelet.plugins[CORE].devices, kubelet.plugins[MEMORY].devices
    assert list(cores) == [f"tencent.com/vcuda-core-{number}" for number in range(400)]
    assert list(memory) == [f"tencent.com/vcuda-memory-268435456-{number}" for number in range(4 * BLOCKS)]
    assert set(cores.values()) | set(memory.values()) == {"Healthy"}
    assert max(map(len, [*cores, *memory])) <= 63


async def test_a_container_starts_under_the_limits_of_its_own_claim(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    one = Container("web-0", core=30, blocks=8)
    wanted = place(stage, one, gpu=2)
    await put(plugin, 1, wanted)
    answer = await kubelet.admit(one)
    [device] = answer.cdi_devices
    assert dict(answer.annotations) == {"cdi.k8s.io/gpucloud": device.name}
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    edits = await kubelet.start_container(one, stage.run_dir / "cdi")
    assert claim_of(edits) == wanted.claim_uid
    assert f"NVIDIA_VISIBLE_DEVICES={stage.gpus[2]}" in edits.env
    assert {mount.container_path for mount in edits.mounts} >= {str(stage.claim_dir(wanted)), "/etc/ld.so.preload"}
    # A container that ends is started again, with the same devices.
    assert claim_of(await kubelet.start_container(one, stage.run_dir / "cdi")) == wanted.claim_uid
    # The image sets the user of its programs.
    assert (stage.claim_dir(wanted) / "usage").stat().st_mode & 0o777 == 0o666


async def test_pods_of_one_size_that_come_at_once_are_never_swapped(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    pods = [Container(f"web-{number}", core=25, blocks=12) for number in range(16)]
    wanted = {one: place(stage, one, gpu=number % 4) for number, one in enumerate(pods)}
    await put(plugin, 1, *wanted.values())
    bound = [one.claim_uid for one in wanted.values()]
    # The last that was bound comes first: a match by size and order would give each another's claim.
    pods.reverse()
    assert all(wanted[one].claim_uid != guess for one, guess in zip(pods, bound, strict=True))
    await asyncio.gather(*(kubelet.admit(one) for one in pods))
    random.shuffle(pods)
    started = await asyncio.gather(*(kubelet.start_container(one, stage.run_dir / "cdi") for one in pods))
    assert [claim_of(edits) for edits in started] == [wanted[one].claim_uid for one in pods]


async def test_the_next_pod_of_a_name_waits_for_its_own_claim(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    """A StatefulSet makes such pods: the previous claim still exists when the next one starts."""
    pod = Container("web-0", core=30, blocks=8, uid="the-next")
    former = place(stage, pod, gpu=0, pod_uid="the-former")
    await put(plugin, 1, former)
    await kubelet.admit(pod)
    start = asyncio.ensure_future(kubelet.start_container(pod, stage.run_dir / "cdi"))
    await asyncio.sleep(0.3)
    assert not start.done()
    own = place(stage, pod, gpu=1, pod_uid="the-next")
    await put(plugin, 2, former, own)
    assert claim_of(await start) == own.claim_uid


async def test_a_kubelet_whose_note_cannot_be_read_goes_by_names(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    pod = Container("web-0", core=30, blocks=8, uid="the-next")
    wanted = place(stage, pod, pod_uid="another")
    await put(plugin, 1, wanted)
    await kubelet.admit(pod)
    (kubelet.directory / "kubelet_internal_checkpoint").write_text('{"Data": 7}')
    assert claim_of(await kubelet.start_container(pod, stage.run_dir / "cdi")) == wanted.claim_uid


async def test_containers_of_one_pod_have_each_their_own(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    first, second = (Container("web-0", core=50, blocks=16, name=name) for name in ("train", "serve"))
    wanted = [place(stage, first, gpu=0), place(stage, second, gpu=1)]
    await put(plugin, 1, *wanted)
    for one in (second, first):
        await kubelet.admit(one)
    claims = [claim_of(await kubelet.start_container(one, stage.run_dir / "cdi")) for one in (first, second)]
    assert claims == [one.claim_uid for one in wanted]


async def test_a_container_waits_for_a_claim_that_is_still_on_its_way(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    one = Container("web-0", core=100, blocks=BLOCKS)
    await kubelet.admit(one)
    start = asyncio.ensure_future(kubelet.start_container(one, stage.run_dir / "cdi"))
    await asyncio.sleep(0.3)
    assert not start.done()
    wanted = place(stage, one)
    await put(plugin, 1, wanted)
    assert claim_of(await start) == wanted.claim_uid


async def test_what_may_not_start_is_refused_in_words_before_the_kubelet_gives_up(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    one = Container("web-0", core=20, blocks=8)
    await kubelet.admit(one)

    def starts() -> Any:
        return kubelet.start_container(one, stage.run_dir / "cdi", seconds=1.5)

    why = await refused(starts())
    assert "container cuda of pod vision/web-0: no claim is placed for it on this node" in why
    # The agent cannot know whether the ledger refused it.
    assert "no tenant, no quota, no room" in why
    first, second = place(stage, one), place(stage, one, gpu=1)
    await put(plugin, 1, first, second)
    assert "are all for it" in await refused(starts())
    await put(plugin, 2, second, msgspec.structs.replace(first, present=False))
    assert claim_of(await starts()) == second.claim_uid
    # The kubelet has recorded no owner: an init container, for example.
    for resource in one.wants:
        kubelet.given[one, resource] = kubelet.given.pop((one, resource))
    other = Container("init-0", core=20, blocks=8)
    await kubelet.admit(other)
    ids = kubelet.given.pop((other, CORE))
    request = pb.PreStartContainerRequest(devices_ids=ids)
    call = kubelet.plugins[CORE].call("PreStartContainer", request, pb.PreStartContainerResponse, seconds=1.5)
    assert "the kubelet names no container that has these devices" in await refused(call)
    await asyncio.gather(*(each.stop(0) for each in kubelet._servers))
    assert "the kubelet does not say whose devices these are" in await refused(starts())


@needs_root
@needs_namespaces
async def test_a_container_of_any_user_is_held_to_its_share(
    plugin: Connection, kubelet: Kubelet, stage: Stage, tmp_path: Path
) -> None:
    one = Container("web-0", core=50, blocks=16)
    wanted = place(stage, one)
    await put(plugin, 1, wanted)
    await kubelet.admit(one)
    edits = await kubelet.start_container(one, stage.run_dir / "cdi")
    (tmp_path / "it").mkdir()
    stage.node_file.chmod(0o666)
    command = containers.namespace_command(
        containers.Container(tmp_path / "it", edits, [containers.PROGRAM, *LOAD], uid=61003)
    )
    await check_limits(stage, plugin, wanted, start(stage, command))


async def test_a_claim_on_several_gpus_gives_all_of_them(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    one = Container("big-0", core=200, blocks=2 * BLOCKS)
    half = Container("big-0", core=100, blocks=BLOCKS)
    first = place(stage, half, gpu=1)
    second = place(stage, half, gpu=3, claim_uid=first.claim_uid)
    await put(plugin, 1, first, second)
    await kubelet.admit(one)
    edits = await kubelet.start_container(one, stage.run_dir / "cdi")
    assert f"CUDA_VISIBLE_DEVICES={stage.gpus[1]},{stage.gpus[3]}" in edits.env


async def test_ids_that_are_given_again_lead_to_the_new_pods_claim(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    old, new = (Container(name, core=100, blocks=BLOCKS) for name in ("old", "new"))
    first = place(stage, old)
    await put(plugin, 1, first)
    await kubelet.admit(old)
    assert claim_of(await kubelet.start_container(old, stage.run_dir / "cdi")) == first.claim_uid
    before = kubelet.answers[old].cdi_devices[0].name
    ids = [kubelet.given[old, resource] for resource in (CORE, MEMORY)]
    kubelet.end(old)
    # The server has not received its end yet, and the kubelet picks the same ids.
    second = place(stage, new, gpu=1)
    await put(plugin, 2, first, second)
    kubelet.given[new, CORE], kubelet.given[new, MEMORY] = ids
    kubelet.answers[new] = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=before)])
    assert claim_of(await kubelet.start_container(new, stage.run_dir / "cdi")) == second.claim_uid


async def test_an_agent_that_was_killed_is_there_again(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    one = Container("web-0", core=30, blocks=8)
    wanted = place(stage, one)
    await put(plugin, 1, wanted)
    await kubelet.admit(one)
    await kubelet.start_container(one, stage.run_dir / "cdi")
    await stage.kill()
    await eventually(lambda: set(kubelet.plugins[CORE].devices.values()) == {"Unhealthy"})
    stage.start(**kubelet.settings)
    # Of both: the kubelet replaces one after the other.
    await eventually(lambda: all(set(one.devices.values()) == {"Healthy"} for one in kubelet.plugins.values()))
    assert len(kubelet.registrations) == 4
    # Its container restarts: an agent that has forgotten the owner of these devices asks again.
    assert claim_of(await kubelet.start_container(one, stage.run_dir / "cdi")) == wanted.claim_uid


async def test_a_kubelet_that_starts_again_is_told_again(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    one = Container("web-0", core=30, blocks=8)
    wanted = place(stage, one)
    await put(plugin, 1, wanted)
    await kubelet.admit(one)
    told = len(kubelet.registrations)
    await kubelet.stop()
    await kubelet.start()
    await kubelet.knows_both()
    assert len(kubelet.registrations) == told + 2
    assert claim_of(await kubelet.start_container(one, stage.run_dir / "cdi")) == wanted.claim_uid


async def test_an_agent_that_is_there_first_waits_for_the_kubelet(stage: Stage, kubelet: Kubelet) -> None:
    await kubelet.stop()
    (kubelet.directory / "kubelet.sock").unlink(missing_ok=True)
    stage.start(**kubelet.settings)
    await eventually(lambda: "kubelet-not-told" in stage.log_text())
    await kubelet.start()
    await kubelet.knows_both()


async def test_a_sick_gpu_is_unhealthy_and_the_others_are_not(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    stage.fault(1, "xid=79")
    cores, memory = kubelet.plugins[CORE], kubelet.plugins[MEMORY]
    await eventually(lambda: {"Unhealthy"} < {*cores.devices.values()} and {"Unhealthy"} < {*memory.devices.values()})
    sick = {int(one.rpartition("-")[2]) for one, health in cores.devices.items() if health == "Unhealthy"}
    assert sick == set(range(100, 200))
    sick = {int(one.rpartition("-")[2]) for one, health in memory.devices.items() if health == "Unhealthy"}
    assert sick == set(range(BLOCKS, 2 * BLOCKS))


async def test_requests_that_make_no_sense_change_nothing(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    core = kubelet.plugins[CORE]
    device = f"{CORE}-0"

    def allocate(*ids: str) -> Any:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return core.call("Allocate", request, pb.AllocateResponse)

    def prefer(size: int, *, available: tuple[str, ...] = (), required: tuple[str, ...] = ()) -> Any:
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=required, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        return core.call("GetPreferredAllocation", request, pb.PreferredAllocationResponse)

    def begin(*ids: str) -> Any:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        return core.call("PreStartContainer", request, pb.PreStartContainerResponse)

    for call in (allocate, begin):
        assert "no devices are named" in await refused(call())
        assert "a device is named twice" in await refused(call(device, device))
        for strange in (f"{CORE}-400", f"{CORE}--1", f"{MEMORY}-{BLOCK_BYTES}-0", "../../etc", "x" * 100_000):
            assert "is no device of tencent.com/vcuda-core on this node" in await refused(call(strange))
    assert "2 of 1 devices cannot be had" in await refused(prefer(2, available=(device,)))
    assert "cannot be had" in await refused(prefer(-1, available=(device,)))
    assert "cannot be had" in await refused(prefer(0, available=(device,), required=(device,)))
    assert "is no device" in await refused(prefer(1, available=("nothing",)))
    assert (await allocate(device)).container_responses[0].cdi_devices


async def test_a_pods_metrics_are_those_of_gpu_manager(stage: Stage, kubelet: Kubelet) -> None:
    port = free_port()
    stage.start(**kubelet.settings | {"GPUCLOUD_METRICS": str(port)})
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    one = Container("web-0", core=25, blocks=12)
    old, new = (place(stage, one, gpu=2) for _ in range(2))
    # The pod before it, of the same names, is not quite gone.
    await put(link, 1, old)
    await put(
        link, 2, msgspec.structs.replace(old, present=False), msgspec.structs.replace(new, gpu_uuid=stage.gpus[3])
    )
    await link.expect(wire.Usage, lambda frame: any(it.uid == new.uid for it in frame.assignments))
    families = await asyncio.to_thread(read, port, "/metric")
    pod = {"container_name": "cuda", "namespace": "vision", "node": "10.0.200.4", "pod_name": "web-0"}
    series = [(family.name, *sorted(it.labels.items())) for family in families.values() for it in family.samples]
    assert len(set(series)) == len(series)
    for name, (words, label) in metrics.SHARES.items():
        family = families[name]
        assert (family.type, family.documentation) == ("gauge", words)
        assert all({k: v for k, v in it.labels.items() if k != label} == pod for it in family.samples)
    [total] = families["container_request_gpu_memory"].samples
    assert total.labels["req_of_gpu_memory"] == "total"


async def test_memory_alone_gives_a_container_no_gpu(plugin: Connection, kubelet: Kubelet, stage: Stage) -> None:
    answer = await kubelet.admit(Container("odd-0", core=0, blocks=4))
    assert not answer.cdi_devices
    assert not answer.annotations
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_kubelet_without_cdi_is_no_kubelet_of_ours(stage: Stage, kubelet: Kubelet) -> None:
    stage.start(**kubelet.settings, GPUCLOUD_CDI_DIR="off")
    assert await stage.ended() == 2
    assert "GPUCLOUD_CDI_DIR cannot be off" in stage.log_text()
