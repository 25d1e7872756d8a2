"""``python -m tests.replicas``: start the platform as ``deploy.demo`` does, with several of each part.

WEB, SCHEDULERS and WORKERS say how many (2 each); STANDBY=no starts one PostgreSQL, and STANDBY=asynchronous has
commits not wait for the second. AGENTS=no starts no agents, and FILL has the database filled with so many nodes for
simulated ones.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from deploy.demo import launch
from deploy.demo.__main__ import main
from deploy.demo.launch import Launch, Options
from deploy.demo.nodes import nodes
from deploy.demo.programs import Commands
from deploy.embedded import prepared, valkey
from deploy.embedded.processes import Program
from tests.ports import free_port
from tests.processes import eventually
from tests.replicas import databases

STREAMS_SECONDS = 60.0


def count(name: str) -> int:
    return int(os.environ.get(name, "2"))


class ReplicaLaunch(Launch):
    """One start of the platform with several of each part."""

    def __init__(self, options: Options, *, say: Callable[[str], None]) -> None:
        super().__init__(options, say=say)
        self.standby = os.environ.get("STANDBY", "synchronous")
        if self.standby != "no":
            self.commands = Commands(
                self.state,
                port=self.port,
                database_url=databases.url(self.state.root),
                redis_url=valkey.url(self.state.root),
            )

    def _services(self) -> None:
        if self.standby == "no":
            super()._services()
            return
        root = self.state.root
        databases.begin(root)
        self.supervisor.start(valkey.server(root), tier=launch.VALKEY)
        for number in databases.NUMBERS:
            program = databases.server(root, number, template=prepared.template() if number == 1 else None)
            self.supervisor.start(program, tier=launch.POSTGRES)
            self.supervisor.wait_ready([program.name])
        self._step(1, "two PostgreSQL servers and Valkey")
        assert eventually(lambda: databases.is_streaming(root), seconds=STREAMS_SECONDS)
        if self.standby == "synchronous":
            databases.require_standby(root)
            assert eventually(lambda: databases.is_streaming(root, state="sync"), seconds=STREAMS_SECONDS)

    def _control_plane(self) -> None:
        ports = [free_port() for _ in range(count("WEB"))]
        servers = [self.commands.server(f"server-{number}", port=port) for number, port in enumerate(ports, 1)]
        for server in servers:
            self.supervisor.start(server, tier=launch.SERVER)
        for number in range(1, count("SCHEDULERS") + 1):
            self.supervisor.start(self.commands.scheduler(f"scheduler-{number}"), tier=launch.SCHEDULER)
        for number in range(1, count("WORKERS") + 1):
            self.supervisor.start(self.commands.worker(f"worker-{number}"), tier=launch.WORKER)
        self.supervisor.start(self.commands.beat(), tier=launch.WORKER)
        self.supervisor.start(self._balancer(ports), tier=launch.SERVER)
        (self.state.root / "web.ports").write_text(" ".join(map(str, ports)))
        self.supervisor.wait_ready([server.name for server in servers])

    def _balancer(self, ports: list[int]) -> Program:
        command = (sys.executable, "-m", "tests.replicas.balancer", str(self.port), *map(str, ports))
        return Program(
            name="balancer",
            command=command,
            log=self.state.log("balancer"),
            directory=databases.ROOT,
        )

    def _database(self) -> None:
        if not (wanted := os.environ.get("FILL")):
            super()._database()
            return
        self.nodes = nodes(1)
        command = (sys.executable, "-m", "benchmarks.replicas.filling", wanted, str(self.state.root))
        self.supervisor.run_to_end(replace(self.commands.manage("fill"), command=command), seconds=launch.SEED_SECONDS)

    def _agents(self) -> None:
        if os.environ.get("AGENTS") != "no":
            super()._agents()


if __name__ == "__main__":
    sys.exit(main(ReplicaLaunch))
