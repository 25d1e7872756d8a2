"""Launch methods for programs that do not ask the agent: the same limits by a CDI spec and by an environment file."""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent import wire
from agent.launch import cdi
from agent.local_wire import Environment
from agent.settings import Library
from tests.agent import cdi_rules
from tests.agent.cdi_rules import Edits
from tests.agent.containers import PROGRAM, Container, namespace_command, namespaces_open, runtime_command
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, GPULOAD, SECRET, Stage, eventually
from tests.agent.test_limits import usage
from tests.agent.test_reconcile import changed, put
from tests.agent.test_socket import OTHER_USER
from tests.processes import alive

# With its 1 GiB it would be over 4.
LOAD = ("--json", "--memory", "1GiB", "--grow", "4GiB", "--every", "0.2")
needs_namespaces = pytest.mark.skipif(not namespaces_open(), reason="mount and pid namespaces are closed here")
RUNTIMES = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in ("crun", "runc")
]


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


def spec_file(stage: Stage, held: wire.Assignment) -> Path:
    return stage.run_dir / "cdi" / f"gpucloud.io-vgpu_{held.claim_uid}.json"


async def edits_of(stage: Stage, held: wire.Assignment) -> Edits:
    """Return the edits of the claim's device for a container."""
    file = spec_file(stage, held)
    await eventually(file.exists)
    spec = cdi_rules.check(file.read_bytes())
    assert [(spec.kind, device.name) for device in spec.devices] == [("gpucloud.io/vgpu", held.claim_uid)]
    return spec.devices[0].container_edits


def environment_file(stage: Stage, held: wire.Assignment) -> dict[str, str]:
    lines = (stage.claim_dir(held) / "env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def start(stage: Stage, command: list[str], **variables: str) -> Any:
    program = subprocess.Popen(command, env=variables or None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    stage.programs.append(program)
    return program


def children(pid: int) -> list[int]:
    """Return the processes that this one has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def check_limits(stage: Stage, link: Connection, held: wire.Assignment, program: Any) -> None:
    """Check the limits: the program has its 1 GiB, no more than 4, and half of the GPU, as under `agent exec`."""
    await eventually(lambda: program.poll() is not None or stage.totals(held).processes == 1)
    assert program.poll() is None, program.stderr.read().decode()
    sample = await usage(link, held, lambda one: 40 < one.core_percent < 60)
    assert sample.processes == 1
    assert GIB <= sample.memory_bytes < 2 * GIB
    while (line := json.loads(await asyncio.to_thread(program.stdout.readline))).get("event") != "grow":
        pass
    assert line["error_name"] == "CUDA_ERROR_OUT_OF_MEMORY"


async def test_a_claims_spec_is_valid_and_names_its_gpus(stage: Stage, link: Connection) -> None:
    first = stage.assignment(gpu=0)
    second = stage.assignment(gpu=2, claim_uid=first.claim_uid)
    await put(link, 1, first, second)
    edits = await edits_of(stage, first)
    variables = dict(one.split("=", 1) for one in edits.env)
    assert variables["CUDA_VISIBLE_DEVICES"] == f"{first.gpu_uuid},{second.gpu_uuid}"
    writable = {mount.host_path for mount in edits.mounts if mount.writable}
    assert writable == {str(stage.claim_dir(first) / "usage"), str(stage.node_file)}
    assert spec_file(stage, first).stat().st_mode & 0o777 == 0o644


async def test_a_read_only_container_of_docker_can_still_write_its_usage_page(
    stage: Stage, held: wire.Assignment
) -> None:
    edits = await edits_of(stage, held)
    # `docker run --read-only`: every mount without `ro` gets it as its last option.
    hardened = [
        mount if "ro" in mount.options else msgspec.structs.replace(mount, options=[*mount.options, "ro"])
        for mount in edits.mounts
    ]
    writable = {mount.host_path for mount in hardened if mount.writable}
    assert writable == {str(stage.claim_dir(held) / "usage"), str(stage.node_file)}


async def test_a_spec_follows_the_claims_gpus_and_ends_with_the_release(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    await edits_of(stage, held)
    grown = stage.assignment(gpu=1, claim_uid=held.claim_uid)
    await put(link, 2, held, grown)
    await eventually(lambda: grown.gpu_uuid in spec_file(stage, held).read_text())
    assert grown.gpu_uuid in environment_file(stage, held)["CUDA_VISIBLE_DEVICES"]
    # A running program must not keep the launch method open for others.
    program = stage.exec(held.claim_uid, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
    await asyncio.to_thread(program.stdout.readline)
    link.forget()
    await link.send(wire.Desired(frame=3, assignments=[]))
    await link.state(held.uid, "releasing")
    await eventually(lambda: not spec_file(stage, held).exists(), seconds=0.8)
    assert program.poll() is None
    assert not (stage.claim_dir(held) / "env").exists()


async def test_what_was_deleted_or_left_behind_is_put_right(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    await edits_of(stage, held)
    spec_file(stage, held).unlink()
    await eventually(spec_file(stage, held).exists)
    await stage.kill()
    gone = spec_file(stage, changed(held, claim_uid="0" * 8 + held.claim_uid[8:]))
    gone.write_text(spec_file(stage, held).read_text().replace(held.claim_uid, gone.stem.partition("_")[2]))
    # The control: another agent's spec in the same directory, and another program's file.
    others = spec_file(stage, changed(held, claim_uid="1" * 8 + held.claim_uid[8:]))
    others.write_text(gone.read_text().replace(str(stage.run_dir), "/run/gpucloud"))
    foreign = others.with_name("gpucloud.io-vgpu_x.json")
    foreign.write_text("{")
    stage.start()
    await control.connection()
    await eventually(lambda: not gone.exists())
    assert others.exists()
    assert foreign.exists()
    assert spec_file(stage, held).exists()


async def test_without_the_library_no_way_in_is_written_and_an_event_says_so(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_LIBRARY=str(stage.library_without_shim()), GPUCLOUD_SIM_DRIVER=str(BUILD / "sim"))
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    event = await link.expect(wire.Event, lambda one: one.code == "ways-not-written")
    assert "libvcuda.so" in event.detail
    assert not (stage.claim_dir(held) / "env").exists()
    assert not spec_file(stage, held).exists()


async def test_a_directory_that_cannot_be_written_is_told_and_tried_again(stage: Stage, control: Control) -> None:
    taken = stage.state_dir.parent / "cdi"
    taken.write_text("a file in its place")
    stage.start(GPUCLOUD_CDI_DIR=str(taken))
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    event = await link.expect(wire.Event, lambda one: one.code == "ways-not-written")
    assert str(taken) in event.detail
    # The other launch method still works.
    assert environment_file(stage, held)
    taken.unlink()
    await eventually((taken / spec_file(stage, held).name).exists)


@needs_namespaces
async def test_a_container_by_cdi_is_held_like_exec(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    edits = await edits_of(stage, held)
    load = Container(stage.state_dir / "load", edits, [PROGRAM, *LOAD])
    await check_limits(stage, link, held, start(stage, namespace_command(load)))


@needs_namespaces
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_container_of_an_oci_runtime_is_held_like_exec(
    stage: Stage, link: Connection, held: wire.Assignment, runtime: str
) -> None:
    edits = await edits_of(stage, held)
    container = Container(stage.state_dir / "load", edits, [PROGRAM, *LOAD])
    program = start(stage, runtime_command(container, runtime, held.claim_uid))
    await eventually(lambda: program.poll() is not None or stage.totals(held).processes == 1)
    if program.poll() is not None and b"hybrid mode not supported" in (words := program.stderr.read()):
        pytest.skip(words.decode().strip())
    await check_limits(stage, link, held, program)
    # And it ends with the claim, though its processes have other pids there.
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False, generation=2)]))
    await link.state(held.uid, "released", 2)
    await asyncio.to_thread(program.wait, 10)


@needs_namespaces
async def test_in_a_container_a_cleared_environment_gets_no_gpu(stage: Stage, held: wire.Assignment) -> None:
    edits = await edits_of(stage, held)
    simulator = [one for one in edits.env if one.startswith(("GPUCLOUD_SIM_NODE", "LD_LIBRARY_PATH"))]
    command = ["env", "-i", *simulator, PROGRAM, "--seconds", "0.1"]
    program = start(stage, namespace_command(Container(stage.state_dir / "cleared", edits, command)))
    _, error = await asyncio.to_thread(program.communicate, timeout=30)
    assert program.returncode != 0, error


@needs_namespaces
async def test_in_a_container_limits_and_turns_cannot_be_written(stage: Stage, held: wire.Assignment) -> None:
    edits = await edits_of(stage, held)
    directory = stage.claim_dir(held)
    await eventually((directory / "turns").exists)
    script = f"for f in limits turns new; do ( : >> {directory}/$f ) 2>/dev/null && echo wrote $f; done; : >> "
    command = ["sh", "-c", f"{script}{directory}/usage && echo wrote usage"]
    program = start(stage, namespace_command(Container(stage.state_dir / "writes", edits, command)))
    out, error = await asyncio.to_thread(program.communicate, timeout=30)
    assert (out.decode(), error.decode()) == ("wrote usage\n", "")


async def test_an_environment_file_means_the_same_to_docker_and_to_systemd(stage: Stage, held: wire.Assignment) -> None:
    text = (stage.claim_dir(held) / "env").read_text()
    by_docker = dict(line.split("=", 1) for line in text.splitlines())
    by_systemd = dict(word.split("=", 1) for word in shlex.split(text, comments=True))
    assert by_docker == by_systemd
    assert by_docker["LD_PRELOAD"] == str(BUILD / "libvcuda.so")
    assert by_docker["CUDA_VISIBLE_DEVICES"] == held.gpu_uuid
    assert "SECRET" not in text
    assert (stage.claim_dir(held) / "env").stat().st_mode & 0o777 == 0o644


async def test_a_program_by_the_environment_file_is_held_like_exec(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    variables = environment_file(stage, held) | {"PATH": os.environ["PATH"]}
    await check_limits(stage, link, held, start(stage, [str(GPULOAD), *LOAD], **variables))


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become other users")


async def give(stage: Stage, held: wire.Assignment, *options: str) -> tuple[int, str]:
    """Run `agent give`; return its exit code and its output."""
    command = [sys.executable, "-m", "agent", "give", held.claim_uid, *options]
    opened = stage.environment(
        GPUCLOUD_CLAIM_SECRET=SECRET, GPUCLOUD_AGENT_SOCKET=str(stage.run_dir / "agent.sock"), PATH=os.environ["PATH"]
    )
    program = start(stage, command, **opened)
    _, error = await asyncio.to_thread(program.communicate, timeout=30)
    return program.returncode, error.decode()


@needs_root
@needs_namespaces
async def test_a_container_of_another_user_is_held_once_the_claim_was_given_to_it(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    edits = await edits_of(stage, held)
    stage.node_file.chmod(0o666)

    def container(name: str, *arguments: str) -> Any:
        return start(
            stage, namespace_command(Container(stage.state_dir / name, edits, [PROGRAM, *arguments], uid=61003))
        )

    # The control: somebody else's page, so no GPU.
    program = container("before", "--seconds", "0.1")
    await asyncio.to_thread(program.communicate, timeout=30)
    assert program.returncode != 0
    assert await give(stage, held, "--user", "61003:61003") == (0, "")
    facts = (stage.claim_dir(held) / "usage").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (61003, 61003, 0o600)
    program = container("after", *LOAD)
    await check_limits(stage, link, held, program)
    # The container ends with its starter, though it has become another user.
    (inside,) = children(program.pid)
    program.kill()
    await eventually(lambda: not alive(inside))


@needs_root
async def test_only_root_gives_a_claim_to_others(stage: Stage, held: wire.Assignment) -> None:
    asked = {"ask": "page", "claim": held.claim_uid, "secret": SECRET, "user": [61004, 61004]}
    command = [sys.executable, "-c", OTHER_USER, str(stage.run_dir / "agent.sock"), "61003", json.dumps(asked) + "\n"]
    out = await asyncio.to_thread(subprocess.check_output, command, input=b"end\n")
    assert json.loads(out)["code"] == "not-allowed"
    asked["secret"] = "wrong"
    assert (await stage.ask(json.dumps(asked).encode() + b"\n"))["code"] == "wrong-secret"
    assert (stage.claim_dir(held) / "usage").stat().st_uid == 0
    assert (await give(stage, held, "--user", "somebody"))[0] == 2


def made(claim_uid: str, devices: list[str]) -> dict[str, Any]:
    told = Environment(claim=claim_uid, set={"GPUCLOUD_CLAIM_DIR": "/run/gpucloud/claims/x"}, prepend={}, append={})
    return cdi.spec(
        told,
        directory=Path("/run/gpucloud/claims/x"),
        files=Path("/run/gpucloud/container"),
        library=Library(Path("/usr/lib/gpucloud/libvcuda.so")),
        devices=devices,
    )


def test_a_spec_on_a_real_gpu_has_its_device_nodes_and_no_simulated_driver() -> None:
    spec = cdi_rules.check(made("7c9e6679-7425-40de-944b-e07fc1f90ae7", ["/dev/nvidia3", "/dev/nvidiactl"]))
    edits = spec.devices[0].container_edits
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia3", "/dev/nvidiactl"]
    assert [one.partition("=")[0] for one in edits.env] == ["GPUCLOUD_CLAIM_DIR"]
    assert [mount.container_path for mount in edits.mounts] == [
        "/run/gpucloud/claims/x",
        "/run/gpucloud/claims/x/usage",
        "/usr/lib/gpucloud/libvcuda.so",
        "/etc/ld.so.preload",
        "/etc/gpucloud/require-limits",
    ]


def test_only_devices_that_are_there_are_named() -> None:
    assert cdi.device_nodes([]) == []
    # Machines have /dev/null, and none has a GPU of this number.
    assert "/dev/nvidia4000" not in cdi.device_nodes([4000])


@pytest.mark.parametrize(
    "change",
    [
        {"cdiVersion": "0.4.0"},
        {"kind": "vgpu"},
        {"devices": []},
        {"unknown": 1},
        {"annotations": {"a": "b"}},
    ],
)
def test_the_rules_refuse_what_runtimes_refuse(change: dict[str, Any]) -> None:
    with pytest.raises((msgspec.ValidationError, AssertionError)):
        cdi_rules.check(made("7c9e6679-7425-40de-944b-e07fc1f90ae7", []) | change)
