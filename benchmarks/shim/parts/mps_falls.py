"""Clients of MPS that fall with others, the time until clients can connect again, and clients of several users."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from agent.host import processes
from agent.host.mps import MpsDaemon, find_left, find_servers
from agent.host.mps_places import has_socket
from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

CLIENT = "benchmarks.shim.programs.mps_client"
WATCH_SECONDS = 1.5
START_SECONDS = 30.0
USERS, STRANGER = (61001, 61002), 61003


class Scene:
    """Two tenants' daemons on one GPU, and small clients of theirs under claims."""

    def __init__(self, stage: Stage, report: Report, groups: Groups) -> None:
        self.stage, self.report, self.groups = stage, report, groups
        self.rows: list[dict[str, Any]] = []

    def client(
        self,
        tenant: str,
        *words: str,
        percent: int = 30,
        claimed: bool = True,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Start a client of the tenant's server."""
        claim = self.stage.claim(percent, backend="mps") if claimed else None
        variables = {**self.groups.variables(tenant, percent), **more}
        return self.stage.start([sys.executable, "-m", CLIENT, *words], claim, more=variables)

    def working(self, tenant: str, **how: Any) -> Process:
        """Start a client that works; return when it has a context."""
        client = self.client(tenant, "work", **how)
        client.wait("started", START_SECONDS)
        return client

    def retry(self, tenant: str) -> dict[str, Any]:
        """Start clients until one works; return how long that took, and the errors of the others."""
        begun, errors = time.monotonic(), list[Any]()
        while time.monotonic() - begun < START_SECONDS:
            client = self.client(tenant, "facts")
            rows = finish(client)
            started = next((row for row in rows if row.get("event") == "started"), None)
            if started is not None and started["mps"]:
                return {"seconds": time.monotonic() - begun, "start": started["seconds"], "errors": errors}
            errors.append(rows[-1] if rows else "no output")
            time.sleep(0.05)
        return {"seconds": None, "errors": errors[:20]}

    def note(self, what: str, *, clients: dict[str, Process], after: dict[str, Any]) -> None:
        """Add a row: which clients went on, which ended by what error, and when a new one could start."""
        self.report.raw(what, after)
        back = after.get("seconds")
        self.rows.append(
            {
                "what": what,
                **{name: fate(client) for name, client in clients.items()},
                "new client after": "–" if back is None else f"{back:.2f} s",
            }
        )


def fate(client: Process) -> str:
    """Return what became of a working client within the time in which it is watched."""
    before, begun = counted(client), time.monotonic()
    while client.alive and time.monotonic() - begun < WATCH_SECONDS:
        time.sleep(0.05)
    if client.alive:
        return "works" if counted(client) > before else "hangs"
    failed = next((row for row in client.rows() if row.get("event") == "failed"), None)
    return f"{failed['call']}: {failed['error']}" if failed else "ended"


def counted(client: Process) -> int:
    """Return how many kernels have ended."""
    return max((int(row.get("iterations", 0)) for row in client.rows()), default=0)


def finish(client: Process, seconds: float = START_SECONDS) -> list[dict[str, Any]]:
    """Wait for the client's end, whatever it is, and return its rows."""
    until = time.monotonic() + seconds
    while client.alive and time.monotonic() < until:
        time.sleep(0.01)
    client.terminate()
    return client.rows()


def measure(stage: Stage, report: Report) -> None:
    """Measure everything; what fails is reported and the rest goes on."""
    groups = Groups(stage)
    try:
        begun = time.monotonic()
        first = groups.start("a")
        report.raw("daemon ready after, s", time.monotonic() - begun)
        groups.start("b")
        scene = Scene(stage, report, groups)
        for step in (facts, killed_client, trapped_client, killed_server, killed_daemon, raw_daemon, users):
            try:
                step(scene, first)
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                report.add_failure(step.__name__, error)
            stage.clear()
        report.table(
            "Which clients fall, by the error of their next call (A1, A2: one server; B: another tenant's)", scene.rows
        )
    finally:
        report.raw("falls", [(at, str(fall)) for at, fall in groups.falls])
        report.raw("logs", groups.logs())
        stage.clear()
        groups.close()


def facts(scene: Scene, daemon: MpsDaemon) -> None:
    """Report what a client sees, with parts and without, and without MPS."""
    seen = {f"part {percent}": finish(scene.client("a", "facts", percent=percent)) for percent in (1, 30, 50, 100)}
    seen["no part"] = finish(scene.client("a", "facts", more={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ""}))
    seen["no daemon"] = finish(scene.client("a", "facts", more={"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}))
    scene.report.raw("facts", seen)
    rows = [
        {
            "started with": name,
            "client of MPS": row["mps"],
            "multiprocessors": row["multiprocessors"],
            "start s": f"{row['seconds']:.2f}",
        }
        for name, found in seen.items()
        for row in found
        if row.get("event") == "started"
    ]
    scene.report.table("What the driver tells a client", rows)
    pipe = daemon.places.pipe
    scene.report.raw(
        "pipe directory", subprocess.run(["ls", "-lan", str(pipe)], capture_output=True, text=True, check=False).stdout
    )
    assert daemon.process is not None
    scene.report.raw(
        "servers",
        {
            "children of the daemon": [str(one) for one in find_servers(daemon.process)],
            "by their environment": [str(one) for one in find_left(pipe)],
            "daemon": str(daemon.process),
        },
    )
    for command in ("get_server_list", "get_default_active_thread_percentage"):
        scene.report.raw(command, ask(scene.groups, daemon, command))
    for server in find_servers(daemon.process):
        scene.report.raw("get_server_status", ask(scene.groups, daemon, f"get_server_status {server.pid}"))


def ask(groups: Groups, daemon: MpsDaemon, command: str) -> str:
    """Give a control daemon a command and return its answer."""
    environment = {**groups.environment(), **groups.variables(daemon.group.tenant, 100)}
    done = subprocess.run(
        [groups.program], env=environment, input=f"{command}\n", capture_output=True, text=True, timeout=20, check=False
    )
    return done.stdout + done.stderr


def three(scene: Scene) -> dict[str, Process]:
    """Start two clients of one server and one of the other tenant's."""
    return {"A1": scene.working("a"), "A2": scene.working("a"), "B": scene.working("b", percent=70)}


def killed_client(scene: Scene, _: MpsDaemon) -> None:
    """Kill one client."""
    clients = three(scene)
    time.sleep(0.5)
    clients["A1"].stop(signal.SIGKILL)
    after = scene.retry("a")
    scene.note("A1 is killed", clients=clients, after=after)


def trapped_client(scene: Scene, daemon: MpsDaemon) -> None:
    """Let a client of the first server end by a trap in a kernel."""
    clients = three(scene)
    faults = {"GPUCLOUD_SIM_FAULTS": "cuLaunchKernel:1=!719"} if scene.stage.simulated else {}
    time.sleep(0.5)
    trapped = finish(scene.client("a", "trap", more=faults))
    scene.report.raw("the client that traps", trapped)
    assert daemon.process is not None
    for server in find_servers(daemon.process):
        scene.report.raw("get_server_status after a trap", ask(scene.groups, daemon, f"get_server_status {server.pid}"))
    clients["A1"].stop(signal.SIGTERM)
    time.sleep(0.3)
    while_there = finish(scene.client("a", "facts"))
    scene.report.raw("a new client while an old one is there", while_there)
    fates = {name: fate(client) for name, client in clients.items() if name != "A1"}
    clients["A2"].terminate()
    after = scene.retry("a")
    scene.report.raw("trap, fates", fates)
    scene.note("a third client of A traps (A1 was ended)", clients=clients, after={**after, "while there": while_there})


def killed_server(scene: Scene, daemon: MpsDaemon) -> None:
    """Kill the server, not the daemon."""
    clients = three(scene)
    time.sleep(0.5)
    assert daemon.process is not None
    for server in find_servers(daemon.process):
        processes.send(server, signal.SIGKILL)
    fates = {name: fate(client) for name, client in clients.items()}
    scene.report.raw("server killed, fates while the others are there", fates)
    scene.note("the server of A is killed", clients=clients, after=scene.retry("a"))


def killed_daemon(scene: Scene, daemon: MpsDaemon) -> None:
    """Kill the control daemon under the agent's code, which ends its server and starts the next one."""
    clients = three(scene)
    time.sleep(0.5)
    assert daemon.process is not None
    old = daemon.process
    begun = time.monotonic()
    processes.send(old, signal.SIGKILL)
    while daemon.process in (None, old) or not daemon.is_ready:
        if time.monotonic() - begun > START_SECONDS:
            raise RuntimeError(f"the daemon does not come back: {daemon.problem}")
        time.sleep(0.005)
    ready = time.monotonic() - begun
    after = scene.retry("a")
    scene.report.raw("control daemon killed", {"ready again after": ready, **after})
    scene.note(
        "the control daemon of A is killed",
        clients=clients,
        after={**after, "seconds": ready + (after["seconds"] or 0)},
    )


def raw_daemon(scene: Scene, _: MpsDaemon) -> None:
    """Kill a control daemon that nobody watches, to see what its server and clients do."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        name = f"raw{int(number)}"
        pipe, log = (scene.groups.directory / f"{name}-{part}" for part in ("pipe", "log"))
        environment = {
            **scene.groups.environment(), "CUDA_VISIBLE_DEVICES": scene.stage.gpu.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log),
        }  # fmt: skip
        options = ["-f", *(["-multiuser-server"] if os.getuid() == 0 else [])]

        def start(options: list[str] = options, environment: dict[str, str] = environment) -> "subprocess.Popen[bytes]":
            return subprocess.Popen([scene.groups.program, *options], env=environment, start_new_session=True)

        pipe.mkdir()
        log.mkdir()
        control = start()
        wait_for(lambda pipe=pipe: has_socket(pipe / "control"))  # type: ignore[misc]
        more = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(log)}
        client = scene.client("a", "work", more=more)
        client.wait("started", START_SECONDS)
        left = find_left(pipe)
        control.send_signal(number)
        control.wait(10)
        found: dict[str, Any] = {"before": [str(one) for one in left], "client": fate(client)}
        found["left"] = [str(one) for one in find_left(pipe)]
        found["new client without a daemon"] = finish(scene.client("a", "facts", more=more))
        found["pipe"] = sorted(path.name for path in pipe.iterdir())
        again = start()
        time.sleep(1.0)
        found["next daemon beside the old client"] = again.poll()
        found["new client with the next daemon"] = finish(scene.client("a", "facts", more=more))
        found["old client then"] = fate(client)
        scene.report.raw(f"control daemon ended by {number.name}, unwatched", found)
        client.terminate()
        with contextlib.suppress(ProcessLookupError):
            again.kill()
        again.wait()
        for one in find_left(pipe):
            processes.send(one, signal.SIGKILL)


def wait_for(done: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise RuntimeError("it did not come in time")
        time.sleep(0.01)


def users(scene: Scene, daemon: MpsDaemon) -> None:
    """Run clients of two users of the group at once, and of a stranger, without libvcuda."""
    if os.getuid() != 0 or scene.stage.simulated:
        # A simulated node is a file of its maker's.
        return
    daemon.places.admit(USERS)
    found: dict[str, Any] = {}
    clients = {uid: scene.client("a", "work", str(uid), claimed=False) for uid in USERS}
    for uid, client in clients.items():
        found[f"user {uid}"] = client.wait("started", START_SECONDS)
    found["both"] = {uid: fate(client) for uid, client in clients.items()}
    found["stranger"] = finish(scene.client("a", "facts", str(STRANGER), claimed=False))
    scene.report.raw("users", found)
    rows = [
        {"user": str(uid), "client of MPS": found[f"user {uid}"]["mps"], "both at once": found["both"][uid]}
        for uid in USERS
    ]
    stranger = f"{STRANGER}, not admitted"
    rows += [
        {"user": stranger, "client of MPS": row.get("mps", row.get("error")), "both at once": "–"}
        for row in found["stranger"]
    ]
    scene.report.table("Users of different uids and one MPS server", rows)


PART = Part("mps-falls", "MPS: what falls with what, restarts, and users", measure, 1.0)
