"""Every process of a claim, whatever it does to hide, belongs to the claim and ends with it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import wire
from agent.claims import attribution
from agent.claims.attribution import ProcessInfo
from agent.host import cgroups, processes
from agent.host.cgroups import Group, Hierarchy
from agent.host.processes import Process
from tests.agent.containers import PROGRAM, Container, namespace_command, namespaces_open
from tests.agent.control import Connection, Control
from tests.agent.stage import SECRET, Stage, eventually
from tests.agent.test_launch_methods import edits_of, start
from tests.agent.test_reconcile import changed, put

# Forks, begins a session, forks again, clears its environment: nothing names the claim any more.
FORGOTTEN = """
import os, signal, sys
if os.fork(): sys.exit()
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
os.execve("/bin/sleep", ["sleep", "600"], {})
"""
# Never the same process for longer than a moment: signals cannot stop it.
COMET = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    if os.fork(): os._exit(0)
    time.sleep(0.001)
"""
# Restarts each process that ends, in a session of its own.
HYDRA = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def head():
    pid = os.fork()
    if not pid:
        os.setsid()
        while True: signal.pause()
    return pid
heads = {head() for _ in range(8)}
print("up", flush=True)
while True:
    os.wait()
    head()
"""
# Its main thread ends (SYS_exit, on x86-64 and on arm64), another one continues.
HEADLESS = """
import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def hierarchies() -> dict[int, Hierarchy]:
    """Return the hierarchies in which groups may be created here, by version."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        fields, (kind, _, options) = mount.split(), kind.split(" ", 2)
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "freezer" in options else 0
        if version and os.access(fields[4], os.W_OK):
            found[version] = Hierarchy(Path(fields[4]), fields[3], version)
    return found


OPEN = hierarchies()
needs_groups = pytest.mark.skipif(not OPEN, reason="control groups cannot be made here")
needs_namespaces = pytest.mark.skipif(not namespaces_open(), reason="mount and pid namespaces are closed here")


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """Create a group of its own, in the tree of this version."""
    version: int = request.param
    if version not in OPEN:
        pytest.skip(f"control groups of version {version} cannot be made here")
    one = Group(OPEN[version].mount / f"gpucloud-{uuid.uuid4()}")
    yield one
    if one.is_occupied():
        one.kill()
    deadline = time.monotonic() + 5
    while not one.remove() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not one.path.exists()


def groups_of(held: wire.Assignment) -> set[Path]:
    return set().union(*(cgroups.find_claim_groups(one).get(held.claim_uid, set()) for one in OPEN.values()))


async def release(link: Connection, held: wire.Assignment) -> None:
    await link.send(wire.Desired(frame=9, assignments=[changed(held, present=False, generation=9)]))
    await link.state(held.uid, "released", 9)


async def start_hidden(stage: Stage, held: wire.Assignment) -> Process:
    """Start a process of the claim that removes all its traces."""
    program = stage.exec(held.claim_uid, sys.executable, "-c", FORGOTTEN)
    pid = int(await asyncio.to_thread(program.stdout.readline))
    await asyncio.to_thread(program.wait, 10)
    await eventually(lambda: (process := processes.find(pid)) and processes.command(process) == "sleep")
    process = processes.find(pid)
    assert process is not None
    assert processes.variable(process, "GPUCLOUD_CLAIM_DIR") is None
    return process


@needs_groups
async def test_a_process_that_cut_all_ties_is_the_claims_and_ends_with_it(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    process = await start_hidden(stage, held)
    status = await asyncio.to_thread(stage.status)
    assert status["assignments"][0]["processes"] == [process.pid]
    await release(link, held)
    assert not processes.alive(process)
    assert not groups_of(held)


@needs_groups
async def test_a_restarted_agent_knows_it_still(
    stage: Stage, link: Connection, held: wire.Assignment, control: Control
) -> None:
    process = await start_hidden(stage, held)
    await stage.kill()
    stage.start()
    await release(await control.connection(), held)
    assert not processes.alive(process)
    assert not groups_of(held)


@needs_groups
async def test_a_process_that_is_never_the_same_ends_too(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    program = stage.exec(held.claim_uid, sys.executable, "-c", COMET)
    await asyncio.to_thread(program.stdout.readline)
    (path,) = groups_of(held)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, present=False, generation=2)]))
    await link.state(held.uid, "releasing")
    # The control: signals alone do not end it.
    await asyncio.sleep(0.3)
    assert Group(path).is_occupied()
    await link.state(held.uid, "released", 2)
    assert not path.exists()


@needs_groups
async def test_a_program_of_another_claim_that_it_started_lives_on(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    other = stage.assignment(gpu=1)
    await put(link, 2, held, other)
    inner = f"{sys.executable} -m agent exec {other.claim_uid} -- sh -c 'echo $$; exec sleep 600'"
    secret = 'GPUCLOUD_CLAIM_SECRET="$KEPT"'
    program = stage.exec(held.claim_uid, "sh", "-c", f"{secret} {inner} & wait", KEPT=SECRET)
    pid = int(await asyncio.to_thread(program.stdout.readline))
    await link.send(wire.Desired(frame=3, assignments=[changed(held, present=False, generation=2), other]))
    await link.state(held.uid, "released", 2)
    process = processes.find(pid)
    assert process is not None
    await link.send(wire.Desired(frame=4, assignments=[changed(other, present=False, generation=2)]))
    await link.state(other.uid, "released", 2)
    assert not processes.alive(process)


async def test_without_groups_children_in_sessions_of_their_own_are_found(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_CGROUPS="off")
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    # One by its environment, one by its parent.
    script = "setsid sleep 600 & echo $!; env -i sleep 601 & echo $!; wait"
    program = stage.exec(held.claim_uid, "sh", "-c", script)
    pids = [int(await asyncio.to_thread(program.stdout.readline)) for _ in range(2)]
    await eventually(lambda: all(processes.find(pid) for pid in pids))
    assert not groups_of(held)
    await release(link, held)
    assert [pid for pid in pids if processes.find(pid)] == []


async def test_without_groups_one_who_starts_his_children_again_ends_with_them(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_CGROUPS="off")
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    program = stage.exec(held.claim_uid, sys.executable, "-c", HYDRA)
    await asyncio.to_thread(program.stdout.readline)
    await release(link, held)
    directory = str(stage.claim_dir(held))
    assert [one for one in attribution.read_processes() if one.directory == directory] == []


@needs_namespaces
async def test_all_of_a_container_ends_though_one_program_alone_is_known(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    edits = await edits_of(stage, held)
    # Pid 1 names no claim and keeps running when the GPU program ends.
    inside = (
        f"env -i setsid sleep 602 & {PROGRAM} --kernel-us 0 & exec env -i sh -c 'trap : TERM; sleep 603; sleep 604'"
    )
    program = start(stage, namespace_command(Container(stage.state_dir / "all", edits, ["sh", "-c", inside])))
    await eventually(lambda: program.poll() is not None or stage.totals(held).processes == 1)
    assert program.poll() is None, program.stderr.read().decode()
    await release(link, held)
    assert await asyncio.to_thread(program.wait, 10) != 0


async def test_a_program_whose_main_thread_ended_lives_until_it_is_ended(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = stage.exec(held.claim_uid, sys.executable, "-c", HEADLESS)
    await asyncio.to_thread(program.stdout.readline)
    stat = Path(f"/proc/{program.pid}/stat")
    await eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    assert processes.find(program.pid) is not None
    await release(link, held)
    assert processes.find(program.pid) is None


@pytest.mark.parametrize("group", [1, 2], indirect=True)
def test_a_group_knows_its_members_below_it_and_ends_them_at_once(group: Group) -> None:
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    inner = Group(group.path / "inner")
    for one, child in zip((group, inner), children, strict=True):
        process = processes.find(child.pid)
        assert process is not None
        one.enter(process)
    assert group.pids() == {child.pid for child in children}
    assert group.is_occupied()
    assert not group.remove()
    group.kill()
    assert [child.wait(10) for child in children] == [-signal.SIGKILL] * 2
    assert not group.members()


@pytest.mark.parametrize("group", [1, 2], indirect=True)
def test_the_agent_ends_no_group_in_which_it_is(group: Group) -> None:
    script = f"""
import os
from pathlib import Path
from agent.host.cgroups import Group
from agent.host import processes
group = Group(Path({str(group.path)!r}))
group.enter(processes.myself())
try:
    group.kill()
except PermissionError:
    print("spared")
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "spared\n"


def seen(pid: int, parent: int, *, container: str | None = None, directory: str | None = None) -> ProcessInfo:
    return ProcessInfo(Process(pid, 1), parent, container, directory)


def anybody(claim: str, process: Process) -> bool:
    return True


def pids(divided: dict[str, set[Process]]) -> dict[str, list[int]]:
    return {claim: sorted(process.pid for process in them) for claim, them in divided.items()}


def test_processes_are_divided_by_membership_directory_container_and_descent() -> None:
    machine = [
        seen(1, 0),
        seen(10, 1),  # the agent
        seen(20, 1),  # a member of a
        seen(21, 20),
        seen(22, 21, directory="/b"),  # started under another claim
        seen(23, 22),
        seen(30, 1, container="c"),
        seen(31, 30, container="c", directory="/a"),
        seen(32, 30, container="c"),
        seen(33, 32, container="nested in c"),
        seen(34, 1, container="nested in c"),
        seen(40, 1),
        seen(50, 1, container="of both", directory="/a"),
        seen(51, 1, container="of both", directory="/b"),
        seen(52, 1, container="of both"),
    ]
    divided = attribution.attribute(
        machine, {"a": [Process(20, 1)], "b": []}, {"/a": "a", "/b": "b"}, accepts=anybody, me=10
    )
    assert pids(divided) == {"a": [20, 21, 30, 31, 32, 33, 34, 50], "b": [22, 23, 51]}


def test_whose_word_does_not_count_is_no_claims() -> None:
    machine = [seen(20, 1, directory="/b"), seen(21, 20)]
    divided = attribution.attribute(
        machine, {"a": [], "b": []}, {"/b": "b"}, accepts=lambda claim, _: claim != "b", me=10
    )
    assert pids(divided) == {}


def test_neither_the_agent_nor_who_started_it_is_a_claims_by_descent_or_container() -> None:
    machine = [
        seen(1, 0, container="c"),
        seen(2, 1, container="c", directory="/a"),
        seen(3, 2, container="c"),
        seen(4, 3, container="c"),
        seen(5, 1, container="c"),
    ]
    divided = attribution.attribute(machine, {}, {"/a": "a"}, accepts=anybody, me=4)
    assert pids(divided) == {"a": [2]}
