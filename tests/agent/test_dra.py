"""The agent as a kubelet's driver for Dynamic Resource Allocation: real gRPC over real Unix sockets, a real agent."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio

from agent import wire
from agent.kubelet.devices import CORE
from agent.kubelet.dra.driver import describe_devices
from agent.kubelet.proto import dra_pb2 as pb
from tests.agent.control import Connection, Control
from tests.agent.kubelet import Kubelet, claim_of, resolve
from tests.agent.plugin_watcher import DRIVING, PluginWatcher
from tests.agent.resource_claims import NODE, allocate, cdi_id, connect, registered, resource_claim, settings_of, start
from tests.agent.stage import BUILD, Stage, eventually
from tests.agent.test_metrics import read
from tests.agent.test_reconcile import put
from tests.ports import free_port


@pytest.fixture
async def link(stage: Stage, watcher: PluginWatcher) -> Connection:
    """Return the connection of an agent whose driver is registered."""
    return await start(stage, watcher)


async def test_the_driver_is_registered_under_its_name(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    [info] = watcher.registrations
    assert (info.type, info.name) == ("DRAPlugin", "gpucloud.io")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    assert Path(info.endpoint) == watcher.registry.parent / "plugins" / "gpucloud.io" / "dra.sock"
    assert (watcher.registry / "gpucloud.io-reg.sock").is_socket()
    await eventually(lambda: "dra-driver-registered" in stage.log_text())


async def test_a_claim_in_force_is_prepared_at_once(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    key = resource_claim()
    wanted = allocate(stage, key, gpu=2, share="9d4f2ad0-5c2b-4a54-a9b4-0e8ad7f5b1c5")
    await put(link, 1, wanted)
    driver = await registered(watcher)
    answer = (await driver.prepare(key))[key[2]]
    assert not answer.error
    [device] = answer.devices
    assert device == pb.Device(
        request_names=["gpu"],
        pool_name=NODE,
        device_name=stage.gpus[2].lower(),
        cdi_device_ids=[cdi_id(wanted)],
        share_id="9d4f2ad0-5c2b-4a54-a9b4-0e8ad7f5b1c5",
    )
    edits = resolve(device.cdi_device_ids[0], stage.run_dir / "cdi")
    assert claim_of(edits) == wanted.claim_uid
    assert f"NVIDIA_VISIBLE_DEVICES={stage.gpus[2]}" in edits.env
    # The image sets the user of its programs.
    assert (stage.claim_dir(wanted) / "usage").stat().st_mode & 0o777 == 0o666
    assert (await driver.prepare(key))[key[2]] == answer


async def test_a_claim_is_waited_for(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    driver, key, other = await registered(watcher), resource_claim(), resource_claim("other")
    await put(link, 1, allocate(stage, other))
    preparing = asyncio.ensure_future(driver.prepare(key, other))
    await asyncio.sleep(0.3)
    assert not preparing.done()
    wanted = allocate(stage, key, gpu=1)
    await put(link, 2, wanted)
    answers = await preparing
    assert [one.error for one in answers.values()] == ["", ""]
    assert list(answers[key[2]].devices[0].cdi_device_ids) == [cdi_id(wanted)]


async def test_a_claim_on_several_gpus_is_mounted_once(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    key = resource_claim("training")
    first = allocate(stage, key, gpu=1)
    second = allocate(stage, key, gpu=3, claim_uid=first.claim_uid)
    await put(link, 1, first, second)
    answer = (await (await registered(watcher)).prepare(key))[key[2]]
    assert {one.device_name for one in answer.devices} == {stage.gpus[1].lower(), stage.gpus[3].lower()}
    assert [list(one.cdi_device_ids) for one in answer.devices] == [[cdi_id(first)], []]
    edits = resolve(cdi_id(first), stage.run_dir / "cdi")
    assert f"CUDA_VISIBLE_DEVICES={stage.gpus[1]},{stage.gpus[3]}" in edits.env


def test_a_container_that_names_one_request_gets_the_claim_too() -> None:
    uid = str(uuid.uuid4())
    parts = [
        wire.ResourceClaim(namespace="a", name="b", uid=uid, pool=NODE, device=device, request=request)
        for device, request in (("gpu-2", "infer/small"), ("gpu-1", "train"), ("gpu-0", "train"))
    ]
    devices = [
        (list(one.request_names), one.device_name, list(one.cdi_device_ids)) for one in describe_devices(parts, "c")
    ]
    assert devices == [
        # Containers name the request, not the choice that the scheduler took.
        (["infer", "train"], "gpu-2", ["gpucloud.io/vgpu=c"]),
        (["train"], "gpu-0", []),
        (["train"], "gpu-1", []),
    ]


async def test_what_cannot_be_prepared_is_refused_in_words(
    link: Connection, watcher: PluginWatcher, stage: Stage
) -> None:
    driver, key, good = await registered(watcher), resource_claim(), resource_claim("good")
    working = allocate(stage, good)
    await put(link, 1, working)
    # Before the kubelet gives up: otherwise nobody reads the words.
    answers = await driver.prepare(key, good, seconds=3)
    assert "gpucloud: ResourceClaim vision/gpu: no claim is placed for it on this node" in answers[key[2]].error
    assert not answers[key[2]].devices
    assert (answers[good[2]].error, len(answers[good[2]].devices)) == ("", 1)

    async def refused() -> str:
        return (await driver.prepare(key, seconds=3))[key[2]].error

    first, second = allocate(stage, key), allocate(stage, key, gpu=1)
    await put(link, 2, working, first, second)
    assert "are all for it; the older ones must be released first" in await refused()
    await put(link, 3, working, msgspec.structs.replace(first, present=False))
    assert f"claim {first.claim_uid}, which was for it, is being released" in await refused()
    await put(link, 4, working, second)
    assert await refused() == ""
    # A GPU that this node does not have.
    lost = msgspec.structs.replace(allocate(stage, key), gpu_uuid="GPU-00000000-0000-0000-0000-000000000000")
    await link.send(wire.Desired(frame=5, assignments=[lost]))
    await link.state(lost.uid, "failed")
    assert f"Claim {lost.claim_uid} is not in force" in await refused()


async def test_without_the_library_nothing_starts(stage: Stage, watcher: PluginWatcher) -> None:
    library = str(stage.library_without_shim())
    stage.start(**settings_of(watcher), GPUCLOUD_LIBRARY=library, GPUCLOUD_SIM_DRIVER=str(BUILD / "sim"))
    link = await connect(stage)
    key = resource_claim()
    await put(link, 1, allocate(stage, key))
    driver = await registered(watcher)
    answer = (await driver.prepare(key, seconds=1.3))[key[2]]
    assert "The library that enforces limits is not at" in answer.error


async def test_requests_that_make_no_sense_change_nothing(
    link: Connection, watcher: PluginWatcher, stage: Stage
) -> None:
    driver, key = await registered(watcher), resource_claim()
    await put(link, 1, allocate(stage, key))
    assert await driver.prepare() == {}
    assert await driver.unprepare() == {}
    assert list(await driver.prepare(key, key)) == [key[2]]
    for strange in ("", "no uid", "../../etc", key[2].upper(), key[2] + "\n", "x" * 100_000):
        answers = await driver.prepare(("n" * 5000, "m" * 5000, strange), key)
        assert set(answers) == {strange, key[2]}
        assert "is no uid" in answers[strange].error
        assert len(answers[strange].error) < 600
        assert not answers[key[2]].error
    many = [("n", "m", str(number)) for number in range(wire.MAX_ASSIGNMENTS + 1)]
    with pytest.raises(aio.AioRpcError) as caught:
        await driver.prepare(*many)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert len(await driver.unprepare(*many)) == len(many)
    for method in ("NodePrepareResources", "NodeUnprepareResources", "NodeSomething"):
        raw: Any = driver.channel.unary_unary(f"{DRIVING}/{method}")
        with pytest.raises(aio.AioRpcError):
            await raw(b"\xff" * 1000, timeout=10)
    assert not (await driver.prepare(key))[key[2]].error


async def test_unpreparing_leaves_the_claim_to_the_ledger(
    link: Connection, watcher: PluginWatcher, stage: Stage
) -> None:
    driver, key = await registered(watcher), resource_claim()
    wanted = allocate(stage, key)
    await put(link, 1, wanted)
    before = await driver.prepare(key)
    for _ in range(2):
        answers = await driver.unprepare(key, resource_claim("unknown"))
        assert [one.error for one in answers.values()] == ["", ""]
    assert (stage.claim_dir(wanted) / "limits").exists()
    # Another pod of the same ResourceClaim.
    assert await driver.prepare(key) == before
    await put(link, 2, msgspec.structs.replace(wanted, present=False))
    await link.state(wanted.uid, "released")
    assert [one.error for one in (await driver.unprepare(key)).values()] == [""]


async def test_an_agent_that_was_killed_answers_as_before(
    link: Connection, watcher: PluginWatcher, stage: Stage, control: Control
) -> None:
    key = resource_claim()
    await put(link, 1, allocate(stage, key))
    before = await (await registered(watcher)).prepare(key)
    await stage.kill()
    # Its sockets are still there, and nobody answers.
    assert (watcher.registry / "gpucloud.io-reg.sock").is_socket()
    # Without the server: the stored desired state holds.
    await control.stop()
    stage.start(**settings_of(watcher))
    await eventually(lambda: len(watcher.registrations) == 2)
    driver = await registered(watcher)
    assert await driver.prepare(key) == before
    assert [one.error for one in (await driver.unprepare(key)).values()] == [""]


async def test_a_kubelet_that_starts_again_finds_the_driver(
    link: Connection, watcher: PluginWatcher, stage: Stage
) -> None:
    key = resource_claim()
    await put(link, 1, allocate(stage, key))
    await registered(watcher)
    await watcher.stop()
    watcher.start()
    driver = await registered(watcher)
    assert not (await driver.prepare(key))[key[2]].error
    # A registration that fails is the kubelet's to try again.
    await watcher.stop()
    watcher.refusals = ["endpoint already registered"]
    watcher.start()
    await registered(watcher)
    assert "endpoint already registered" in stage.log_text()


async def test_sockets_that_are_removed_are_made_again(link: Connection, watcher: PluginWatcher, stage: Stage) -> None:
    for path in (watcher.registry / "gpucloud.io-reg.sock", watcher.registry.parent / "plugins/gpucloud.io/dra.sock"):
        watcher.registrations.clear()
        path.unlink()
        await eventually(lambda: watcher.registrations)
        await registered(watcher)


async def test_an_agent_that_ends_takes_its_sockets_along(
    link: Connection, watcher: PluginWatcher, stage: Stage
) -> None:
    assert stage.agent is not None
    stage.agent.terminate()
    assert await stage.ended() == 0
    assert not list(watcher.registry.iterdir())
    assert not (watcher.registry.parent / "plugins" / "gpucloud.io" / "dra.sock").exists()
    await eventually(lambda: not watcher.drivers)


async def test_an_agent_that_is_there_first_waits_for_the_kubelet(stage: Stage, run_dir: Path) -> None:
    watcher = PluginWatcher(run_dir / "kubelet")
    stage.start(**settings_of(watcher))
    await eventually(lambda: "dra-driver-not-registered" in stage.log_text())
    # GPUs that are published too early are allocated, and a kubelet without the driver tries again after a minute.
    first = await stage.control.connection()
    assert (await first.expect(wire.Hello)).dra is msgspec.UNSET
    watcher.start()
    try:
        await registered(watcher)
        await connect(stage)
    finally:
        await watcher.stop()


async def test_both_ways_to_a_kubelet_can_be_on(stage: Stage, run_dir: Path, watcher: PluginWatcher) -> None:
    kubelet = Kubelet(run_dir / "kubelet")
    await kubelet.start()
    try:
        stage.start(**settings_of(watcher) | kubelet.settings | {"GPUCLOUD_DEVICE_PLUGIN": "on"})
        await stage.control.connection()
        await registered(watcher)
        await eventually(lambda: CORE in kubelet.plugins)
    finally:
        await kubelet.stop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"GPUCLOUD_KUBELET_DIR": "off"}, "GPUCLOUD_DRA=on needs GPUCLOUD_KUBELET_DIR"),
        ({"GPUCLOUD_DRA": "off"}, "needs GPUCLOUD_DEVICE_PLUGIN or GPUCLOUD_DRA"),
        ({"GPUCLOUD_DRA": "yes"}, "GPUCLOUD_DRA=yes is neither on nor off"),
        ({"GPUCLOUD_CDI_DIR": "off"}, "GPUCLOUD_CDI_DIR cannot be off"),
    ],
)
async def test_settings_that_make_no_driver_are_refused(
    stage: Stage, run_dir: Path, change: dict[str, str], words: str
) -> None:
    stage.start(**settings_of(PluginWatcher(run_dir / "kubelet"), **change))
    assert await stage.ended() == 2
    assert words in stage.log_text()


async def test_an_agent_without_the_driver_says_nothing_of_it(stage: Stage, control: Control) -> None:
    """An older server does not know the field."""
    stage.start()
    hello = await (await control.connection()).expect(wire.Hello)
    assert b'"dra"' not in msgspec.json.encode(hello)


async def test_preparing_is_measured_in_two_parts(stage: Stage, watcher: PluginWatcher) -> None:
    port = free_port()
    stage.start(**settings_of(watcher, GPUCLOUD_METRICS=str(port)))
    link = await connect(stage)
    driver = await registered(watcher)
    keys = [resource_claim(f"gpu-{number}") for number in range(8)]
    preparing = asyncio.ensure_future(driver.prepare(*keys))
    await asyncio.sleep(1)
    await put(
        link,
        1,
        *(allocate(stage, key, gpu=number % 4, core_request=10, core_limit=10) for number, key in enumerate(keys)),
    )
    assert {one.error for one in (await preparing).values()} == {""}
    for _ in range(20):
        await driver.prepare(*keys)
    await driver.prepare(resource_claim(), seconds=1.2)
    families = await asyncio.to_thread(read, port)
    samples = families["gpucloud_agent_dra_prepare_seconds"].samples
    found = {(one.name.rpartition("_")[2], one.labels["part"], one.labels.get("le", "")): one.value for one in samples}
    assert found["count", "wait", ""] == found["count", "work", ""] == 21 * len(keys)
    # The first eight waited for the ledger, and the others for nothing.
    assert found["bucket", "wait", "0.001"] == 20 * len(keys)
    assert found["sum", "wait", ""] > 0
    assert found["sum", "work", ""] > 0
    assert families["gpucloud_agent_dra_refusals"].samples[0].value == 1


# Reading /proc lasts for as long as a file is there.
SLOW_PROC = """
import pathlib, sys, time
from agent.__main__ import main
from agent.claims import attribution
wall, read = pathlib.Path(sys.argv.pop(1)), attribution.read_processes
def wait():
    seen = read()
    wall.with_suffix(".met").touch()
    while wall.exists():
        time.sleep(0.01)
    return seen
attribution.read_processes = wait
raise SystemExit(main())
"""


async def test_a_claim_is_prepared_while_another_ones_processes_are_looked_for(
    stage: Stage, watcher: PluginWatcher, tmp_path: Path
) -> None:
    wall = tmp_path / "wall"
    stage.start(code=SLOW_PROC, arguments=(str(wall),), **settings_of(watcher))
    link = await connect(stage)
    ending, key = allocate(stage, resource_claim("older")), resource_claim()
    await put(link, 1, ending)
    driver = await registered(watcher)
    wall.touch()
    gone = msgspec.structs.replace(ending, present=False, generation=2)
    await link.send(wire.Desired(frame=2, assignments=[gone]))
    await eventually(wall.with_suffix(".met").exists)
    await put(link, 3, gone, allocate(stage, key, gpu=1))
    assert not (await driver.prepare(key))[key[2]].error
    # Nothing is released before all processes were seen.
    await link.state(ending.uid, "releasing", 2)
    assert stage.claim_dir(ending).exists()
    wall.unlink()
    await link.state(ending.uid, "released", 2)
