"""The self-check: each fault is named, with its remedy."""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from agent import settings, wire
from agent.check import devices, kernel, library, places, server
from agent.check.mig import mig
from agent.check.running import SelfCheck
from agent.host import processes
from agent.host.gpus import Inventory
from agent.local_api.listener import Caller
from agent.local_wire import Refusal
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, ROOT, Stage

# The agent, with a private state directory of 8 MiB: as in a unit's sandbox.
SANDBOXED = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None, use_errno=True).unshare(0x00020000) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "state", sys.argv.pop(1)], check=True)
from agent.__main__ import main
sys.exit(main())
"""


async def run_check(
    stage: Stage, *options: str, url: str | None = None, seen_by: str = "command", **more: str
) -> tuple[int, dict[str, Any]]:
    """Return exit code and findings by name of `agent check --json`."""
    variables = {"GPUCLOUD_SIM_NODE": str(stage.node_file), "GPUCLOUD_LIBRARY": str(BUILD / "libvcuda.so")} | more
    command = [sys.executable, "-m", "agent", "check", "--json", "--server", url or stage.control.url]
    program = await asyncio.create_subprocess_exec(
        *[*command, "--state-dir", str(stage.state_dir), *options],
        env=stage.environment(**variables),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    out, _ = await program.communicate()
    told = json.loads(out)
    assert told["seen_by"] == seen_by, told["seen_how"]
    found = {check["name"]: check for check in told["checks"]}
    assert told["ok"] == all(check["state"] != "failed" for check in found.values())
    assert all(check["cure"] for check in found.values() if check["state"] != "ok")
    return program.returncode or 0, found


async def test_a_machine_that_lacks_nothing_passes_though_it_is_not_a_node_yet(stage: Stage) -> None:
    code, found = await run_check(stage)
    assert code == 0
    assert {name for name, check in found.items() if check["state"] == "failed"} == set()
    assert found["enrolled"]["state"] == "warning"
    assert found["driver"]["detail"].endswith("4 GPUs")


async def test_it_tells_what_keeps_limits_from_holding_and_ends_with_1(stage: Stage) -> None:
    stage.state_dir.mkdir()
    broken = stage.state_dir / "libvcuda.so"
    broken.write_text("no library")
    code, found = await run_check(stage, url="http://127.0.0.1:9", GPUCLOUD_LIBRARY=str(broken))
    assert code == 1
    failed = {name for name, check in found.items() if check["state"] == "failed"}
    assert failed == {"driver", "library", "preload", "server"}
    assert found["arbiter"]["state"] == "warning"
    assert "cannot be preloaded" in found["preload"]["detail"]


async def test_a_started_agent_sends_what_it_finds_of_the_machine(stage: Stage, link: Connection) -> None:
    hello = await link.expect(wire.Hello)
    for _ in range(5):
        if hello.checks:
            break
        # The first connection does not wait for checks that a busy machine takes long for; a later one has them.
        await link.socket.close()
        link = await stage.control.connection()
        hello = await link.expect(wire.Hello)
    found = {check.name: check for check in hello.checks}
    assert {"driver", "library", "preload", "arbiter", "run-dir", "state-dir", "disk", "cgroup"} <= found.keys()
    assert found["library"].state == "ok"


async def test_a_running_agent_checks_what_it_needs_itself(stage: Stage, link: Connection) -> None:
    await link.expect(wire.Hello)
    # The library in a person's shell is not the one that the agent has loaded.
    broken = {"GPUCLOUD_LIBRARY": str(stage.state_dir / "libvcuda.so")}
    code, found = await run_check(stage, seen_by="agent", **broken)
    assert found["library"]["state"] == found["preload"]["state"] == found["enrolled"]["state"] == "ok"
    # The control plane of these tests answers nothing but what the agent needs.
    assert {name for name, check in found.items() if check["state"] == "failed"} <= {"server"}
    code, found = await run_check(stage, "--here", **broken)
    assert (code, found["library"]["state"]) == (1, "failed")


async def test_another_servers_agent_is_not_taken_for_this_ones(stage: Stage, link: Connection) -> None:
    await link.expect(wire.Hello)
    code, found = await run_check(stage, url="http://127.0.0.1:9")
    assert (code, found["server"]["state"]) == (1, "failed")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make mounts of its own")
async def test_the_check_tells_what_holds_in_the_agents_sandbox(stage: Stage, control: Control) -> None:
    stage.state_dir.mkdir()
    stage.start(code=SANDBOXED, arguments=(str(stage.state_dir),))
    await (await control.connection(seconds=60)).expect(wire.Hello)
    _, inside = await run_check(stage, seen_by="agent")
    assert (inside["disk"]["state"], inside["enrolled"]["state"]) == ("failed", "ok")
    _, outside = await run_check(stage, "--here")
    assert (outside["disk"]["state"], outside["enrolled"]["state"]) == ("ok", "warning")


async def test_no_other_user_lets_the_agent_check_itself() -> None:
    async def inventory() -> Inventory:
        raise AssertionError("it looked")

    own = processes.find(os.getpid())
    assert own is not None
    chosen = settings.read(server="http://127.0.0.1:9", state_dir=None, environment={})
    answer = await SelfCheck(chosen, inventory).answer(Caller(own, os.getuid() + 1, 0))
    assert isinstance(answer, Refusal)
    assert answer.code == "not-allowed"


def test_missing_device_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert devices.files(tmp_path).state == "failed"
    assert "nvidia-uvm" in devices.files(tmp_path).detail
    for name in ("nvidia-uvm", "nvidia0", "nvidia-uvm-tools"):
        (tmp_path / name).touch()
    assert devices.files(tmp_path).state == "ok"
    assert devices.files(tmp_path).detail.startswith("3 device files")


@pytest.mark.parametrize(
    ("version", "state"), [("580.65.06", "ok"), ("525.60.13", "ok"), ("470.82.01", "warning"), ("none", "ok")]
)
def test_a_driver_that_is_too_old_is_told(version: str, state: str) -> None:
    gpu = wire.Gpu(uuid="GPU-00000000-0000-0000-0000-000000000000", index=0, model="H200", memory_bytes=1)
    assert devices.driver(Inventory((gpu,), version)).state == state


def test_no_gpu_and_no_driver_are_failures() -> None:
    assert devices.driver(Inventory((), "580.65.06")).state == "failed"
    assert devices.driver(Inventory(problem="no NVIDIA driver is installed")).detail == "no NVIDIA driver is installed"


def test_other_software_that_shares_gpus_is_named(tmp_path: Path) -> None:
    assert devices.others(tmp_path).state == "ok"
    (tmp_path / "usr/local/vgpu").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.preload").write_text("/usr/local/lib/libnvshare.so\n")
    mps = tmp_path / "proc/77"
    mps.mkdir(parents=True)
    (mps / "comm").write_text("nvidia-cuda-mps\n")
    found = devices.others(tmp_path)
    assert found.state == "warning"
    assert all(name in found.detail for name in ("HAMi", "NVIDIA MPS", "libnvshare"))


def test_both_versions_of_cgroups_are_known(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/agent\n")
    empty, first, second = tmp_path / "0", tmp_path / "1", tmp_path / "2"
    (first / "memory").mkdir(parents=True)
    (first / "memory/cgroup.procs").touch()
    (second / "system.slice/agent").mkdir(parents=True)
    (second / "cgroup.controllers").touch()
    assert kernel.cgroup(empty, own).state == "warning"
    assert "version 1" in kernel.cgroup(first, own).detail
    assert kernel.cgroup(second, own).detail == "version 2, not delegated to the agent"
    (second / "system.slice/agent/cgroup.procs").touch()
    assert kernel.cgroup(second, own).detail == "version 2, delegated to the agent"


def test_a_run_directory_must_be_ours_in_memory_and_short(tmp_path: Path, run_dir: Path) -> None:
    assert places.run_dir(run_dir).state == "ok"
    assert "in memory" in places.run_dir(run_dir / "not-yet").detail
    run_dir.chmod(0o777)
    assert places.run_dir(run_dir).state == "failed"
    assert places.run_dir(run_dir / ("x" * 120)).state == "failed"
    if places.file_system(tmp_path) != "tmpfs":
        assert places.run_dir(tmp_path / "run").state == "warning"


def test_a_state_directory_that_others_may_read_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert places.state_dir(tmp_path).state == "warning"
    tmp_path.chmod(0o700)
    assert places.state_dir(tmp_path).state == "ok"
    assert places.state_dir(Path("/proc/nothing")).state == "failed"


def test_an_arbiter_that_does_not_run_is_told(tmp_path: Path) -> None:
    program = tmp_path / "vcuda-arbiter"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert library.arbiter(program).state == "warning"
    program.chmod(0o755)
    assert "exit code 3" in library.arbiter(program).detail
    assert library.arbiter(BUILD / "vcuda-arbiter").state == "ok"


@pytest.mark.parametrize(
    ("late_seconds", "state", "words"),
    [(0, "ok", "server"), (60, "warning", "before"), (-60, "warning", "behind"), (-4000, "failed", "behind")],
)
async def test_a_clock_that_is_not_the_servers_is_told(late_seconds: float, state: str, words: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(time.time() - late_seconds, usegmt=True)
        writer.write(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        found = {check.name: check for check in await asyncio.to_thread(server.reachable, f"http://127.0.0.1:{port}")}
    assert found["server"].state == "ok"
    assert (found["clock"].state, words in found["clock"].detail) == (state, True)


def test_a_certificate_that_is_not_trusted_is_told(tmp_path: Path) -> None:
    """A real TLS server of the moment, signed by nobody."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "5"]
    subprocess.run([*make, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    script = (
        "import http.server, ssl, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(200); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        "s = http.server.HTTPServer(('127.0.0.1', 0), H); c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
        "c.load_cert_chain(sys.argv[1], sys.argv[2]); s.socket = c.wrap_socket(s.socket, server_side=True)\n"
        "print(s.server_port, flush=True); s.serve_forever()\n"
    )
    command = [sys.executable, "-c", script, str(certificate), str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tls:
        try:
            assert tls.stdout is not None
            url = f"https://localhost:{tls.stdout.readline().strip()}"
            (refused,) = server.reachable(url)
            assert (refused.state, "does not trust" in refused.detail) == ("failed", True)
            ask = f"from agent.check import server; print(*(check.detail for check in server.reachable({url!r})))"
            trusted = subprocess.run(
                [sys.executable, "-c", ask],
                env={"SSL_CERT_FILE": str(certificate), "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=True,
            )
            assert "valid for 5 more days" in trusted.stdout
        finally:
            tls.kill()


def test_an_agent_that_may_not_divide_gpus_says_what_to_do() -> None:
    gpu = wire.Gpu(uuid=f"GPU-{uuid.uuid4()}", index=3, model="NVIDIA H200", memory_bytes=1, mig=wire.Mig(profiles=[]))
    found = mig(Inventory(gpus=(gpu,)))
    assert found.state == "warning"
    assert found.detail.startswith("GPU 3 in MIG mode, but this agent may not make instances")
    assert "as root" in (found.cure or "")
