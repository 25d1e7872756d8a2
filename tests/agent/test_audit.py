"""GPU processes without limits are found and reported; limited ones never are."""

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import wire
from agent.claims import audit
from agent.claims.audit import Audit
from agent.claims.claim import gpu_key
from agent.claims.usage import Accounted
from agent.host import processes
from agent.host.gpus import Listed
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GPULOAD, Stage, eventually
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

MIB = 1 << 20
# Counted from the creation of the context; a busy machine may take longer than the promised 3 s.
PATIENCE = 30.0


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


async def found(link: Connection, code: str, pid: int) -> wire.Event:
    def is_it(event: wire.Event) -> bool:
        return event.code == code and event.process is not None and event.process.pid == pid

    return await link.expect(wire.Event, is_it, seconds=PATIENCE)


def reported_codes(link: Connection, pid: int) -> list[str]:
    """Return the codes reported for this process."""
    events = [frame for frame in link.frames if isinstance(frame, wire.Event)]
    return [event.code for event in events if event.process is not None and event.process.pid == pid]


def findings(stage: Stage) -> list[Any]:
    status: dict[str, Any] = stage.status()["audit"]
    return [(one["code"], one["process"]["pid"]) for one in status["findings"]]


def overwrite(page: Path, at: int, words: bytes) -> None:
    """Overwrite a page as its tenant may."""
    with page.open("r+b") as file:
        file.seek(at)
        file.write(words)


def outside(stage: Stage, **more: str) -> Any:
    """Start a GPU program without a claim."""
    variables = {"LD_LIBRARY_PATH": str(BUILD / "sim"), "GPUCLOUD_SIM_NODE": str(stage.node_file)} | more
    command = [str(GPULOAD), "--memory", "64MiB", "--kernel-us", "0"]
    program = subprocess.Popen(command, env=stage.environment(**variables), stdout=subprocess.DEVNULL)
    stage.programs.append(program)
    return program


async def unlimited(stage: Stage, held: wire.Assignment, *options: str) -> Any:
    """Start a GPU program under the claim without LD_PRELOAD; it has its context."""
    command = ["env", "-u", "LD_PRELOAD", str(GPULOAD), "--json", "--kernel-us", "0", *options]
    program = stage.exec(held.claim_uid, *command)
    await asyncio.to_thread(program.stdout.readline)
    return program


async def test_a_program_without_the_library_is_reported_and_one_with_it_is_not(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    good = await load(stage, held, "--memory", "1GiB")
    bad = await unlimited(stage, held, "--memory", "1GiB")
    began = time.monotonic()
    event = await found(link, "process-unlimited", bad.pid)
    assert time.monotonic() - began >= audit.GRACE_SECONDS - audit.LOOK_SECONDS
    assert event.process is not None
    assert (event.process.command, event.process.gpu_uuid, event.process.claim_uid) == (
        "gpuload", held.gpu_uuid, held.claim_uid,
    )  # fmt: skip
    assert (event.process.memory_bytes or 0) >= 1024 * MIB
    assert "LD_PRELOAD" in event.detail
    assert findings(stage) == [("process-unlimited", bad.pid)]
    # Once only, however long it continues; the other one never.
    await asyncio.sleep(audit.MEMORY_SECONDS + 1)
    assert reported_codes(link, bad.pid) == ["process-unlimited"]
    assert reported_codes(link, good.pid) == []
    assert bad.poll() is None
    bad.kill()
    await asyncio.to_thread(bad.wait)
    await eventually(lambda: findings(stage) == [])


async def test_a_library_in_a_namespace_of_its_own_is_reported_within_two_seconds(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    # libvcuda is preloaded, but not into the namespace in which this program's library opens the driver: it never
    # attaches. A busy machine may delay a report, so it has three attempts.
    waited = []
    for _ in range(3):
        suite = str(BUILD / "tests" / "suite")
        bad = stage.exec(held.claim_uid, suite, "--role", "namespace_inside", str(6 * 1024 * MIB))
        said = await asyncio.to_thread(bad.stdout.readline)
        began = time.monotonic()
        assert float(said.split()[1]) == 0
        assert stage.totals(held).processes == 0
        event = await found(link, "process-unlimited", bad.pid)
        waited.append(time.monotonic() - began)
        assert event.process is not None
        assert (event.process.memory_bytes or 0) > held.memory_bytes
        assert event.process.claim_uid == held.claim_uid
        bad.kill()
        if waited[-1] <= audit.PROMISED_SECONDS:
            break
    assert min(waited) <= audit.PROMISED_SECONDS, waited


async def test_a_statically_linked_program_is_reported(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    command = ["make", "-s", "build/tests/static"]
    made = await asyncio.to_thread(
        lambda: subprocess.run(command, cwd=BUILD.parent, capture_output=True, text=True, check=False)
    )
    if "cannot find -lc" in made.stderr:
        pytest.skip("this system has no static C library to link with")
    assert made.returncode == 0, made.stderr
    # libvcuda is preloaded, as into every program of the claim; nothing loads it. It uses more than the limit.
    bad = stage.exec(held.claim_uid, str(BUILD / "tests" / "static"))
    assert "holds" in str(await asyncio.to_thread(bad.stdout.readline))
    event = await found(link, "process-unlimited", bad.pid)
    assert "linked statically" in event.detail
    assert event.process is not None
    assert (event.process.memory_bytes or 0) > held.memory_bytes


async def test_what_a_program_of_the_claim_starts_is_the_claims_too(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    # It belongs to the claim by descent: its environment no longer says so.
    load = f"env -u LD_PRELOAD -u GPUCLOUD_CLAIM_DIR {GPULOAD} --kernel-us 0 --memory 64MiB"
    script = f"{load} >/dev/null & echo $!; wait"
    program = stage.exec(held.claim_uid, "sh", "-c", script)
    pid = int(await asyncio.to_thread(program.stdout.readline))
    event = await found(link, "process-unlimited", pid)
    assert event.process is not None
    assert event.process.claim_uid == held.claim_uid
    os.kill(pid, 9)


async def test_a_program_with_the_claims_environment_alone_is_the_claims(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    # A child of no known process, and never registered: only its environment names its claim.
    mine = outside(stage, GPUCLOUD_CLAIM_DIR=str(stage.claim_dir(held)))
    for program, claim_uid in ((mine, held.claim_uid), (outside(stage), None)):
        event = await found(link, "process-unlimited", program.pid)
        assert event.process is not None
        assert event.process.claim_uid == claim_uid


async def test_a_slot_that_is_erased_or_a_page_that_is_damaged_is_no_slot(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--kernel-us", "0", "--memory", "64MiB")
    page = stage.claim_dir(held) / "usage"
    await asyncio.sleep(audit.GRACE_SECONDS + 1)
    assert reported_codes(link, program.pid) == []
    overwrite(page, stage.library.processes_at, bytes(stage.library.process_bytes * 4))
    assert "erased its slot" in (await found(link, "process-unlimited", program.pid)).detail
    program.kill()
    other = await load(stage, held, "--kernel-us", "0", "--memory", "64MiB")
    overwrite(page, 0, bytes(8))
    assert "damaged" in (await found(link, "process-unlimited", other.pid)).detail


async def test_a_slot_that_a_program_without_the_library_forged_is_no_slot(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    bad = await unlimited(stage, held, "--memory", "64MiB")
    process = processes.find(bad.pid)
    assert process is not None
    library = stage.library
    page, owner = stage.claim_dir(held) / "usage", processes.own_namespace() << 32 | bad.pid
    overwrite(page, library.slots_used_at, (1).to_bytes(4, "little"))
    row = owner.to_bytes(8, "little") + process.start_ticks.to_bytes(8, "little")
    overwrite(page, library.processes_at, row)
    assert (await found(link, "process-unlimited", bad.pid)).process is not None


async def test_memory_that_the_page_hides_is_reported(stage: Stage, link: Connection, held: wire.Assignment) -> None:
    program = await load(stage, held, "--kernel-us", "0", "--memory", "2GiB")
    await eventually(lambda: stage.totals(held).memory_bytes >= 2048 * MIB)
    at = stage.library.processes_at + stage.library.process_gpu_at

    # Stopped, or its library would write the correct values again.
    program.send_signal(signal.SIGSTOP)
    for field in stage.library.memory_at:
        overwrite(stage.claim_dir(held) / "usage", at + field, bytes(8))
    await eventually(
        lambda: "memory-over-limit" in reported_codes(link, program.pid), seconds=audit.MEMORY_SECONDS + PATIENCE
    )
    event = await found(link, "memory-over-limit", program.pid)
    assert event.process is not None
    assert (event.process.memory_bytes or 0) >= 2048 * MIB
    assert "accounts for 0" in event.detail


async def test_a_limit_that_is_lowered_below_the_use_is_nobodys_fault(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    program = await load(stage, held, "--kernel-us", "0", "--memory", "2GiB")
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, memory_bytes=MIB)]))
    await link.state(held.uid, "over_limit", 2)
    await asyncio.sleep(audit.MEMORY_SECONDS + 2)
    assert reported_codes(link, program.pid) == []


@pytest.mark.parametrize("mode", ["kill", "off"])
async def test_the_operator_says_what_becomes_of_what_is_found(stage: Stage, control: Control, mode: str) -> None:
    stage.start(GPUCLOUD_AUDIT=mode)
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    good = await load(stage, held, "--kernel-us", "0")
    bad = await unlimited(stage, held, "--memory", "64MiB")
    # Without a claim, and of a system user: it is reported, never ended.
    stranger = outside(stage)
    if mode == "kill":
        assert "SIGTERM, as this machine's GPUCLOUD_AUDIT" in (await found(link, "process-ended", bad.pid)).detail
        assert await asyncio.to_thread(bad.wait, 5) == 0
        await found(link, "process-unlimited", stranger.pid)
    else:
        await asyncio.sleep(audit.GRACE_SECONDS + 3)
        assert not [frame for frame in link.frames if isinstance(frame, wire.Event)]
        assert bad.poll() is None
    assert good.poll() is None
    assert stranger.poll() is None


async def test_whoever_starts_many_programs_hides_none_of_them(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_AUDIT="kill")
    link = await control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    held = stage.assignment()
    await put(link, 1, held)
    for _ in range(audit.MOST_REPORTS):
        outside(stage)
    await eventually(lambda: len(findings(stage)) == audit.MOST_REPORTS, seconds=20)
    # The minute's reports are used up.
    bad = await unlimited(stage, held, "--memory", "64MiB")
    assert await asyncio.to_thread(bad.wait, PATIENCE) == 0
    # The action on it is reported all the same.
    await eventually(lambda: reported_codes(link, bad.pid) == ["process-ended"])


async def test_a_policy_that_is_none_is_refused_at_the_start(stage: Stage) -> None:
    stage.start(GPUCLOUD_AUDIT="fence")
    assert await stage.ended() == 2
    assert "GPUCLOUD_AUDIT=fence is none of warn, kill, off" in stage.log_text()


def test_in_a_container_of_its_own_a_pid_is_not_taken_for_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    strict, ours = Audit(pids_are_ours=False), Audit(pids_are_ours=True)
    listed = [Listed("GPU-00000000-0000-0000-0000-000000000000", os.getpid(), 1)]
    for now in (0.0, 1.0, 2.0):
        assert strict.run(listed, {}, now=now) == []
    assert strict.unseen == 1
    # A process that uses a GPU may be another than NVML's pid here: it is reported, never ended.
    monkeypatch.setattr(processes, "has_open", lambda process, prefix: True)
    assert strict.run(listed, {}, now=3.0) == []
    assert [one.is_certain for one in strict.run(listed, {}, now=5.0)] == [False]
    # The control: where pids are ours, the same process is found.
    assert ours.run(listed, {}, now=0.0) == []
    news = ours.run(listed, {}, now=2.0)
    assert [(one.code, one.is_certain) for one in news] == [("process-unlimited", True)]


def test_a_process_that_proc_does_not_show_is_counted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(1, "Operation not permitted", str(path))

    # As /proc does for other users' processes if it is mounted with hidepid=1.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    ours = Audit(pids_are_ours=True)
    listed = [Listed("GPU-00000000-0000-0000-0000-000000000000", 1, 1)]
    assert ours.run(listed, {}, now=0.0) == []
    assert ours.unseen == 1


def test_a_process_without_a_slot_is_news_before_two_seconds_have_passed() -> None:
    me, gpu = processes.myself(), "GPU-00000000-0000-0000-0000-000000000000"
    runtime: Any = SimpleNamespace(members=SimpleNamespace(living=lambda: [me]), accounted={}, damaged=False)
    ours = Audit(pids_are_ours=True)
    # It came onto the GPU right after a scan, and a scan takes some time: the longest time that it can go unseen.
    at = audit.LOOK_SECONDS * 1.2
    while not ours.run([Listed(gpu, me.pid, 1)], {"a claim": runtime}, now=at):
        at += audit.LOOK_SECONDS * 1.2
        assert at <= audit.PROMISED_SECONDS
    assert [one.facts.claim_uid for one in ours.findings] == ["a claim"]


def test_reports_are_counted_so_that_nobody_fills_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_REPORTS", 0)
    ours = Audit(pids_are_ours=True)
    listed = [Listed("GPU-00000000-0000-0000-0000-000000000000", os.getpid(), 1)]
    for now in (0.0, 2.0):
        assert ours.run(listed, {}, now=now) == []
    assert len(ours.findings) == 1
    monkeypatch.setattr(audit, "MOST_REPORTS", 1)
    assert len(ours.run(listed, {}, now=3.0)) == 1


def test_who_is_a_claims_is_looked_up_once_however_many_strangers_there_are() -> None:
    looked: list[int] = []

    def living() -> list[Any]:
        looked.append(1)
        return []

    runtime: Any = SimpleNamespace(members=SimpleNamespace(living=living), directory=Path("/nowhere"), accounted={})
    strangers = [os.getpid(), os.getppid(), 1]
    listed = [Listed("GPU-00000000-0000-0000-0000-000000000000", pid, 1) for pid in strangers]
    ours = Audit(pids_are_ours=True)
    for now in (0.0, 1.0):
        ours.run(listed, {"a claim": runtime}, now=now)
    assert len(looked) == 2


def test_a_process_that_leaves_the_gpu_and_comes_back_is_no_news() -> None:
    ours = Audit(pids_are_ours=True)
    listed = [Listed("GPU-00000000-0000-0000-0000-000000000000", os.getpid(), 1)]
    news = [len(ours.run(seen, {}, now=now)) for now, seen in enumerate([listed] * 3 + [[]] + [listed] * 4)]
    assert sum(news) == 1
    assert len(ours.findings) == 1


@pytest.mark.parametrize(
    ("measured", "to_the_byte", "is_found"),
    [
        ([1000] * 13, True, False),
        ([1065] * 13, True, True),
        # A program that allocates and frees: one reading that agrees is enough.
        ([*[9000] * 6, 1000, *[9000] * 6], True, False),
        # A context that libvcuda could only estimate.
        ([1600] * 13, False, False),
        ([2100] * 13, False, True),
        # Not for long enough yet.
        ([9000] * 12, True, False),
    ],
)
def test_memory_above_the_account_counts_when_it_is_so_all_the_time(
    measured: list[int], to_the_byte: bool, is_found: bool
) -> None:
    gpu, me = "GPU-00000000-0000-0000-0000-000000000000", processes.myself()
    runtime: Any = SimpleNamespace(
        members=SimpleNamespace(living=lambda: [me]),
        accounted={(me, gpu_key(gpu)): Accounted(1000 * MIB, to_the_byte)},
    )
    ours = Audit(pids_are_ours=True)
    codes: list[str] = []
    for look, mebibytes in enumerate(measured):
        listed = [Listed(gpu, me.pid, mebibytes * MIB)]
        news = ours.run(listed, {"a claim": runtime}, now=look * audit.LOOK_SECONDS)
        codes += [finding.code for finding in news]
    assert codes == (["memory-over-limit"] if is_found else [])
