"""Services of the telemetry benchmark: PostgreSQL and Valkey from their wheels, one server, worker and beat."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.telemetry.filled import Filled
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import processes
from tests.ports import free_port


@dataclass(frozen=True)
class Stage:
    """A running control plane over a filled database."""

    port: int
    # Processes whose CPU time and memory are reported, by role.
    pids: dict[str, int]
    filled: Filled


@contextlib.contextmanager
def stage(directory: Path, *, nodes: int, fill: Callable[[int], Filled] | None = None) -> Iterator[Stage]:
    """Start everything, fill the database (by `fill`, once Django is set up), and stop at the end."""
    state = State.at(directory / "state")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(embedded.services(state.root, durable=True))
        commands = Commands(state, port=free_port(), database_url=running.database_url, redis_url=running.redis_url)
        os.environ.update(commands.control_plane)
        filled = _run_fill(nodes, fill)
        pids = {"database": running.pids["postgres"], "valkey": running.pids["valkey"]}
        for program in (commands.server(), commands.worker(), commands.beat()):
            program = replace(program, orphan_signal=signal.SIGTERM)  # noqa: PLW2901 - the same, with one word more
            process = processes.start(program)
            stack.callback(processes.stop, program, process)
            processes.wait_ready(program, process)
            pids[program.name] = process.pid
        yield Stage(commands.port, pids, filled)


def _run_fill(nodes: int, fill: Callable[[int], Filled] | None) -> Filled:
    import django  # noqa: PLC0415 - the settings read the environment that was just made

    django.setup()
    from benchmarks.telemetry import filling  # noqa: PLC0415 - models, once apps are loaded

    return (fill or filling.fill)(nodes)
