"""Programs of the benchmark: durable PostgreSQL and Valkey from their wheels, several web servers, the others once."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.api.cpu import seconds_below
from benchmarks.telemetry.filled import Filled
from benchmarks.telemetry.memory import mib_below
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import processes
from deploy.embedded.processes import Program
from tests.ports import free_port

# As a supervisor does after a first death.
AGAIN_SECONDS = 0.2


@dataclass
class Stage:
    """A running installation over a filled database."""

    commands: Commands
    ports: list[int]
    filled: Filled
    # A member's token of each tenant of `filled.cookies`.
    tokens: list[str]
    services: dict[str, int]
    running: dict[str, tuple[Program, subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self, program: Program) -> None:
        """Start a program of the control plane."""
        # A SIGKILL of the benchmark must not leave the server's children.
        program = replace(program, orphan_signal=signal.SIGTERM)
        self.running[program.name] = program, processes.start(program)

    def start_web(self, name: str, tree: Path | None = None) -> int:
        """Start a web server of this code or of another checkout; return its port."""
        port = free_port()
        server = self.commands.server(name, port=port)
        if tree is not None:
            path = os.pathsep.join(filter(None, [str(tree), str(tree / "cli"), os.environ.get("PYTHONPATH", "")]))
            server = replace(server, directory=tree, environment={**(server.environment or {}), "PYTHONPATH": path})
        self.start(server)
        return port

    def end(self, name: str) -> None:
        """Stop a program in order."""
        processes.stop(*self.running.pop(name))

    def wait_ready(self) -> None:
        """Wait until everything that was started is ready."""
        for program, process in self.running.values():
            processes.wait_ready(program, process)

    def kill(self, name: str) -> None:
        """Kill a program, and start it again as a supervisor does."""
        program, process = self.running[name]
        process.kill()
        process.wait()
        time.sleep(AGAIN_SECONDS)
        self.start(program)

    def stop(self) -> None:
        """Stop all of the control plane."""
        for program, process in reversed(self.running.values()):
            processes.stop(program, process)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor seconds by role; those of all web servers together."""
        found: dict[str, float] = {}
        for name, pid in self._pids():
            found[name] = found.get(name, 0.0) + seconds_below(pid)
        return found

    def mib(self) -> dict[str, float]:
        """Return the memory by role; the largest web server's."""
        found: dict[str, float] = {}
        for name, pid in self._pids():
            found[name] = max(found.get(name, 0.0), mib_below(pid))
        return found

    def _pids(self) -> list[tuple[str, int]]:
        pids = {name: process.pid for name, (_, process) in self.running.items()} | self.services
        return [(name.partition("-")[0], pid) for name, pid in pids.items()]


@contextlib.contextmanager
def stage(directory: Path, *, web: int, nodes: int) -> Iterator[Stage]:
    """Start the services and the web servers, fill the database for so many nodes, and stop all at the end."""
    state = State.at(directory / "state")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with embedded.services(state.root, durable=True) as running:
        commands = Commands(state, port=free_port(), database_url=running.database_url, redis_url=running.redis_url)
        # Measuring clients send more requests than persons.
        commands.control_plane["THROTTLE_PER_SECOND"] = "0"
        os.environ.update(commands.control_plane)
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        from benchmarks.scale import filling  # noqa: PLC0415 - models, once apps are loaded

        filled, tokens = filling.begin(nodes)
        ready = Stage(commands, [], filled, tokens, dict(running.pids))
        try:
            ready.ports += [ready.start_web(f"web-{number}") for number in range(1, web + 1)]
            ready.wait_ready()
            yield ready
        finally:
            ready.stop()
