"""`make bench-reclaim`: how soon a lender has its own back from a thousand borrowing claims.

PostgreSQL with its own durable settings, Valkey, scheduler, worker and beat run as `make demo` starts them. Agents are
played: they report at once what they are told, so no time of a GPU, driver or program is in the figures. The lender's
claims wait while the pool preempts nobody; the clock starts when it is allowed to, without a grace, and ends when the
last of them is in force.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.api.cpu import seconds_below
from benchmarks.report import Row, print_report
from deploy import embedded
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import prepared, processes

GPUS_PER_NODE = 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-reclaim", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--claims", type=int, default=1000, help="of the borrower, one GPU each (1,000)")
    # At most 200 claims of a tenant may wait for quota.
    parser.add_argument("--gpus", type=int, nargs="+", default=[8], help="of each claim of the lender (8)")
    parser.add_argument("--runs", type=int, default=1, help="of each row (1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory, _services(Path(directory)) as commands:
        rows = [
            _measure(commands, arguments.claims, gpus, preempt_by)
            for gpus in arguments.gpus
            for _ in range(arguments.runs)
            for preempt_by in ("release", "suspend")
        ]
    print_report("reclaim", rows)


@contextmanager
def _services(directory: Path) -> Iterator[Commands]:
    state = State.at(directory / "state")
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with embedded.services(state.root, durable=True, template=prepared.make()) as running:
        commands = Commands(state, port=1, database_url=running.database_url, redis_url=running.redis_url)
        os.environ.update(commands.control_plane)
        import django  # noqa: PLC0415 - the settings read the environment that was just made

        django.setup()
        from django.core.management import call_command  # noqa: PLC0415 - models, once apps are loaded

        call_command("migrate", verbosity=0)
        yield commands


def _measure(commands: Commands, claims: int, gpus: int, preempt_by: str) -> Row:
    from benchmarks.reclaim import stage  # noqa: PLC0415 - models, once apps are loaded

    stage.fill(nodes=-(-claims // GPUS_PER_NODE), gpus_per_node=GPUS_PER_NODE, preempt_by=preempt_by)
    with ExitStack() as stack:
        stack.enter_context(stage.played_agents())
        pids = {one.name: stack.enter_context(_program(one)) for one in (commands.scheduler(),)}
        stage.borrow(claims)
        pids |= {one.name: stack.enter_context(_program(one)) for one in (commands.worker(), commands.beat())}
        stage.want_back(claims // gpus, gpus)
        stage.wait_for_worker()
        before = {name: seconds_below(pid) for name, pid in pids.items()}
        took = stage.take_back(claims // gpus)
        spent = {name: seconds_below(pid) - before[name] for name, pid in pids.items()}
    stage.check(claims, preempt_by)
    return {
        "preempt by": preempt_by,
        "borrowing claims": claims,
        "lender's claims": claims // gpus,
        "GPUs each": gpus,
        **took,
        "claims/s": claims / took["last s"],
        **{f"{name} CPU s": spent[name] for name in ("worker", "scheduler")},
        "load": os.getloadavg()[0],
    }


@contextmanager
def _program(program: processes.Program) -> Iterator[int]:
    process = processes.start(program)
    try:
        processes.wait_ready(program, process)
        yield process.pid
    finally:
        processes.stop(program, process)


if __name__ == "__main__":
    main()
