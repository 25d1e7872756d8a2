"""The copied command on a machine, a new version over an old one, and a complete removal."""

import asyncio
import hashlib
import json
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.machine import InstalledMachine, rewrite_bundle
from tests.agent.stage import GIB, GPULOAD, ROOT, Stage, eventually

UNIT = ROOT / "deploy/systemd/gpucloud-agent.service"


@pytest.fixture
async def machine(stage: Stage, run_dir: Path) -> AsyncIterator[InstalledMachine]:
    """Create a machine with systemd, and none of our files."""
    it = InstalledMachine(run_dir, stage)
    it.boot_systemd()
    yield it
    it.close()


async def connected(machine: InstalledMachine) -> Connection:
    connection = await machine.stage.control.connection(seconds=30)
    hello = await connection.expect(wire.Hello)
    machine.stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return connection


async def test_the_copied_command_makes_a_machine_a_node_with_a_running_agent(
    machine: InstalledMachine, control: Control
) -> None:
    code, words = await machine.run_copied_line()
    assert code == 0, words
    link = await connected(machine)
    assert (await link.expect(wire.Hello)).library == f"{machine.root}/opt/gpucloud-agent/current/libvcuda.so"
    assert [request["token"] for request in control.enrolments] == ["gpe_once"]
    status = await machine.status()
    assert (status["node"], status["connected"], status["gpus"]) == ("sim-1", True, 4)
    log = (machine.root / "tmp/systemctl.log").read_text().splitlines()
    assert log == ["daemon-reload", "enable --quiet gpucloud-agent.service", "start gpucloud-agent.service"]
    identity = machine.stage.state_dir / "agent.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    # Neither the one-time token nor the download is left on the machine.
    assert not any(b"gpe_once" in content for _, content in machine.files().values())
    assert sorted(path.name for path in (machine.root / "tmp").iterdir()) == [
        "agent.log", "agent.pid", "bin", "systemctl.log"
    ]  # fmt: skip


async def test_a_bundle_that_is_not_the_promised_one_is_not_run(machine: InstalledMachine, control: Control) -> None:
    before = machine.files()
    control.files[machine.bundle.path] += b"\0"
    code, words = await machine.run_copied_line()
    assert code != 0
    assert "checksum" in words.lower() or "FAILED" in words
    assert machine.files() == before
    assert control.enrolments == []


async def test_a_failed_check_leaves_the_machine_as_it_was_and_the_token_unused(
    machine: InstalledMachine, control: Control
) -> None:
    before = machine.files()
    machine.stage.node_file = Path("/nowhere")
    code, words = await machine.run_copied_line()
    assert (code, "FAIL  driver" in words) == (3, True)
    assert machine.files() == before
    assert control.enrolments == []


async def test_a_refused_token_leaves_the_machine_as_it_was(machine: InstalledMachine, control: Control) -> None:
    before = machine.files()
    control.enrol_faults = [(403, {"title": "Enrolment refused", "detail": "This enrolment token has expired."})]
    code, words = await machine.run_copied_line()
    assert (code, "has expired" in words) == (3, True)
    kept = {name for name in machine.files() if name not in before}
    # The secret that the server knows stays: the next token's answer may be lost, too.
    assert kept == {"var/lib/gpucloud-agent", "var/lib/gpucloud-agent/agent.json"}


async def test_the_unit_knows_the_authority_that_the_installation_trusted(
    machine: InstalledMachine, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit has no environment of the shell that installs it."""
    authority = machine.root / "etc/authority.pem"
    authority.write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    assert (await machine.run_copied_line())[0] == 0
    assert f"SSL_CERT_FILE={authority}\n" in (machine.root / "etc/gpucloud-agent.env").read_text()


async def test_without_systemd_it_says_how_to_start_the_agent(stage: Stage, run_dir: Path, control: Control) -> None:
    machine = InstalledMachine(run_dir, stage)
    code, words = await machine.run_copied_line()
    assert code == 0, words
    assert f"{machine.agent} run" in words
    assert len(control.enrolments) == 1
    assert not (machine.root / "etc/systemd/system/gpucloud-agent.service").exists()
    assert (await machine.ran(str(machine.agent), "check"))[0] == 0


async def test_a_new_version_leaves_programs_and_pages_alone_and_takes_the_claims_over(
    machine: InstalledMachine, control: Control
) -> None:
    assert (await machine.run_copied_line())[0] == 0
    link = await connected(machine)
    assignment = machine.stage.assignment(core_request=40, core_limit=40, memory_bytes=4 * GIB)
    await link.send(wire.Desired(frame=2, assignments=[assignment]))
    await link.state(assignment.uid, "in_force")
    program = machine.stage.exec(assignment.claim_uid, str(GPULOAD), "--memory", "1GiB")
    await eventually(lambda: machine.stage.totals(assignment).memory_bytes >= GIB)
    pages = {path: path.stat().st_ino for path in machine.stage.claim_dir(assignment).iterdir()}
    library = mapped_library(program.pid)
    agent, old = machine.pid, machine.versions

    # For a program at any moment, the library is always there.
    content = rewrite_bundle(machine.bundle.content, manifest=manifest(machine, version="9.9.9"))
    code, words = await machine.install(content)
    assert code == 0, words
    link = await connected(machine)
    observed = await link.state(assignment.uid, "in_force", 1)
    assert observed.memory_bytes >= GIB
    assert machine.pid != agent
    assert machine.versions != old
    assert [name.split("-")[0] for name in machine.versions] == ["9.9.9"]
    assert len(control.enrolments) == 1
    # The same pages, and the same library in the same process: removed by name, but still mapped.
    assert {path: path.stat().st_ino for path in pages} == pages
    assert program.poll() is None
    assert mapped_library(program.pid).inode == library.inode
    # It still follows its limits.
    grown = msgspec.structs.replace(assignment, generation=2, core_limit=70)
    await link.send(wire.Desired(frame=3, assignments=[grown]))
    await link.state(assignment.uid, "in_force", 2)
    await eventually(lambda: machine.stage.totals(assignment).observed_generation == 2)


async def test_upgrade_fetches_what_the_server_serves_and_refuses_what_it_does_not(
    machine: InstalledMachine, control: Control
) -> None:
    assert (await machine.run_copied_line())[0] == 0
    await connected(machine)
    content = rewrite_bundle(machine.bundle.content, manifest=manifest(machine, version="9.9.9"))
    told = {"version": "9.9.9", "path": "/agent/new.pyz", "sha256": hashlib.sha256(content).hexdigest()}
    control.files |= {"/agent/bundle.json": json.dumps(told).encode(), "/agent/new.pyz": content + b"\0"}
    before, agent = programs(machine.files()), machine.pid
    upgrade = (str(machine.agent), "upgrade", "--root", str(machine.root))
    code, words = await machine.ran(*upgrade)
    assert (code, "does not match" in words) == (3, True), words
    assert (programs(machine.files()), machine.pid) == (before, agent)
    control.files["/agent/new.pyz"] = content
    code, words = await machine.ran(*upgrade)
    assert code == 0, words
    await connected(machine)
    assert [name.split("-")[0] for name in machine.versions] == ["9.9.9"]


async def test_pages_of_another_version_are_refused_while_claims_lie_there(machine: InstalledMachine) -> None:
    assert (await machine.run_copied_line())[0] == 0
    link = await connected(machine)
    assignment = machine.stage.assignment()
    await link.send(wire.Desired(frame=2, assignments=[assignment]))
    await link.state(assignment.uid, "in_force")
    before, agent = machine.files(), machine.pid
    content = rewrite_bundle(machine.bundle.content, manifest=manifest(machine, pages=99))
    code, words = await machine.install(content)
    assert (code, "version 99" in words) == (3, True)
    assert programs(machine.files()) == programs(before)
    assert machine.pid == agent


async def test_a_version_that_does_not_come_up_is_switched_back(machine: InstalledMachine) -> None:
    assert (await machine.run_copied_line())[0] == 0
    await connected(machine)
    old = machine.versions
    broken = "class Daemon:\n    def __init__(self, *_, **__): raise RuntimeError('only when it runs')\n"
    content = rewrite_bundle(machine.bundle.content, daemon=broken, manifest=manifest(machine, version="9.9.9"))
    code, words = await machine.install(content, "--patience", "1")
    assert (code, "runs again" in words) == (3, True), words
    await connected(machine)
    assert (machine.root / "opt/gpucloud-agent/current").readlink().name == old[0]


async def test_a_machine_with_claims_keeps_its_agent_and_one_without_is_left_as_it_was_found(
    machine: InstalledMachine,
) -> None:
    before = machine.files()
    assert (await machine.run_copied_line())[0] == 0
    link = await connected(machine)
    assignment = machine.stage.assignment()
    await link.send(wire.Desired(frame=2, assignments=[assignment]))
    await link.state(assignment.uid, "in_force")
    code, words = await machine.ran(str(machine.agent), "uninstall", "--root", str(machine.root))
    assert (code, assignment.claim_uid in words) == (3, True)
    assert (await machine.status())["connected"]
    await link.send(wire.Desired(frame=3, assignments=[]))
    await eventually(lambda: not machine.stage.claim_dir(assignment).exists())
    code, words = await machine.ran(str(machine.agent), "uninstall", "--root", str(machine.root))
    assert (code, "node forget" in words) == (0, True), words
    assert machine.files() == before
    assert machine.pid is None


async def test_forced_away_the_agent_leaves_programs_under_their_last_limits(machine: InstalledMachine) -> None:
    before = machine.files()
    assert (await machine.run_copied_line())[0] == 0
    link = await connected(machine)
    assignment = machine.stage.assignment(memory_bytes=2 * GIB)
    await link.send(wire.Desired(frame=2, assignments=[assignment]))
    await link.state(assignment.uid, "in_force")
    program = machine.stage.exec(assignment.claim_uid, str(GPULOAD), "--memory", "1GiB")
    await eventually(lambda: machine.stage.totals(assignment).memory_bytes >= GIB)
    code, words = await machine.ran(str(machine.agent), "uninstall", "--force", "--root", str(machine.root))
    assert code == 0, words
    assert machine.files() == before
    await asyncio.sleep(0.5)
    assert program.poll() is None
    assert "(deleted)" in mapped_library(program.pid).path


def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT.name
    # Its programs need not be on this machine.
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/gpucloud-agent", "/bin/true"))
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True, check=True
    )
    level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", judged.stdout)
    assert level is not None
    # 9.6 is a unit without sandbox options; only root's own rights to signal and read remain.
    assert float(level[1]) <= 4.0


class Mapped:
    """A process' mapping of the library."""

    def __init__(self, line: str) -> None:
        fields = line.split(maxsplit=5)
        self.inode, self.path = int(fields[4]), fields[5]


def mapped_library(pid: int) -> Mapped:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return Mapped(next(line for line in lines if "/libvcuda.so" in line))


def manifest(machine: InstalledMachine, **changed: object) -> str:
    return json.dumps(json.loads((machine.root / "opt/gpucloud-agent/current/manifest.json").read_text()) | changed)


def programs(files: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    return {name: facts for name, facts in files.items() if name.startswith(("opt/", "etc/", "usr/"))}
