"""Start-up order of the demo, with its messages."""

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.nodes import Node, nodes
from deploy.demo.programs import HOST, Commands, Workload
from deploy.demo.state import State
from deploy.demo.supervisor import Supervisor
from deploy.embedded import postgres, prepared, valkey
from deploy.embedded.processes import StartFailed

# Tiers, stopped from the last to the first.
POSTGRES, VALKEY, SERVER, SCHEDULER, WORKER, AGENTS, PROGRAMS = range(7)
STEPS = 6
# After a launcher was killed, its children still hold the port for a moment.
PORT_SECONDS = 5.0
# Migrations included.
SEED_SECONDS = 600.0
# A seeded program that fails this often in a row (half a minute) has lost its claim: somebody released it.
PROGRAM_DEATHS = 8


class PortInUse(Exception):
    """Another process listens on the server's port."""


@dataclass(frozen=True)
class Options:
    """The state directory, the server's address, whether to start the seeded programs, and the nodes of ``default``."""

    state: Path
    port: int
    programs: bool = True
    nodes: int = 1


class Launch:
    """One start of the platform, from an empty directory or an existing state."""

    def __init__(self, options: Options, *, say: Callable[[str], None]) -> None:
        self.state = State.at(options.state)
        self.port, self._with_programs, self._node_count = options.port, options.programs, options.nodes
        self._say = say
        self._lock = self.state.lock()
        self.supervisor = Supervisor(pids=self.state.pids, say=say)
        self.nodes: list[Node] = []
        self.commands = Commands(
            self.state,
            port=self.port,
            database_url=os.environ.get("DATABASE_URL") or postgres.url(self.state.root),
            redis_url=os.environ.get("REDIS_URL") or valkey.url(self.state.root),
        )

    def up(self) -> None:
        """Start everything.

        Raises StartFailed, PortInUse or StopRequested; call ``down`` in every case.
        """
        wait_for_port(self.port, seconds=PORT_SECONDS if self.state.pids.exists() else 0.0)
        self._services()
        self._step(2, "the database: migrations, tenants, quotas, nodes")
        self._database()
        self._step(3, "server, scheduler, worker")
        self._control_plane()
        self._step(4, "agents: " + ", ".join(f"{node.name} (pool {node.pool})" for node in self.nodes))
        self._agents()
        self._step(5, "programs under the seeded claims" if self._with_programs else "no programs, as asked")
        if self._with_programs:
            self._programs()
        self._step(6, "ready")

    def down(self) -> None:
        """Stop everything in order, and keep what the next start needs."""
        self.supervisor.stop()
        self.state.clear_runs()

    def _step(self, number: int, text: str) -> None:
        self._say(f"[{number}/{STEPS}] {text}")

    def _services(self) -> None:
        started = []
        if not os.environ.get("DATABASE_URL"):
            server = postgres.server(self.state.root, durable=True, template=prepared.template())
            self.supervisor.start(server, tier=POSTGRES)
            started.append("postgres")
        if not os.environ.get("REDIS_URL"):
            self.supervisor.start(valkey.server(self.state.root), tier=VALKEY)
            started.append("valkey")
        self._step(1, "PostgreSQL and Valkey" if started else "PostgreSQL and Redis as DATABASE_URL and REDIS_URL say")
        self.supervisor.wait_ready(started)

    def _database(self) -> None:
        self.nodes = nodes(self._node_count)
        default = [word for node in self.nodes if node.pool == "default" for word in ("--default-node", node.name)]
        # Both in one process: a start of Django takes longer than either, once the database is there.
        seed = self.commands.manage("seed", "seed_demo", "--migrate", "--state-dir", str(self.state.root), *default)
        self.supervisor.run_to_end(seed, seconds=SEED_SECONDS)

    def _control_plane(self) -> None:
        self.supervisor.start(self.commands.server(), tier=SERVER)
        self.supervisor.start(self.commands.scheduler(), tier=SCHEDULER)
        self.supervisor.start(self.commands.worker(), tier=WORKER)
        self.supervisor.start(self.commands.beat(), tier=WORKER)
        self.supervisor.wait_ready(["server"])

    def _agents(self) -> None:
        programs = [self.commands.agent(node) for node in self.nodes]
        for program in programs:
            self.supervisor.start(program, tier=AGENTS)
        self.supervisor.wait_ready(program.name for program in programs)

    def _programs(self) -> None:
        """Start the programs of seeded claims.

        The platform works without them, so a failure here is printed and not fatal.
        """
        seed = self.commands.manage("workloads", "seed_demo", "--state-dir", str(self.state.root), "--workloads")
        seed.log.unlink(missing_ok=True)
        try:
            self.supervisor.run_to_end(seed, seconds=SEED_SECONDS)
            workloads = list(map(workload, seed.log.read_text().splitlines()))
            # The file contains the claims' secrets.
            seed.log.unlink()
        except (StartFailed, ValueError) as error:
            self._say(f"      the seeded programs could not be started: {error}")
            return
        for each in filter(None, workloads):
            self.supervisor.start(self.commands.workload(each), tier=PROGRAMS, most_deaths=PROGRAM_DEATHS)


def workload(line: str) -> Workload | None:
    """Parse a line of the seed's output; None for a log line.

    Raises ValueError for a malformed one.
    """
    if not line.startswith("{"):
        return None
    facts = json.loads(line)
    try:
        return Workload(facts["claim"], facts["secret"], facts["agent_socket"], tuple(facts["command"]))
    except KeyError as error:
        raise ValueError(f"a workload without {error}") from error


def wait_for_port(port: int, *, seconds: float) -> None:
    """Wait until the port is free.

    Raises PortInUse if it is not free in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PortInUse(f"{HOST}:{port} cannot be used: {error.strerror}") from error
            else:
                return
        if time.monotonic() > deadline:
            raise PortInUse(f"something else listens on {HOST}:{port}; stop it, or set PORT")
        time.sleep(0.1)
