"""``python -m deploy.demo``: start the platform, print its address, run until stopped."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from deploy.demo.launch import Launch, Options, PortInUse
from deploy.demo.state import InUse
from deploy.demo.supervisor import StopRequested
from deploy.embedded.places import PlaceUnusable
from deploy.embedded.postgres import PostgresMissing
from deploy.embedded.processes import StartFailed
from deploy.embedded.tether import tether_to
from deploy.embedded.valkey import ValkeyMissing

FATAL = (StartFailed, PortInUse, InUse, PlaceUnusable, PostgresMissing, ValkeyMissing)
# Of the pool `default`; each is an agent and an arbiter.
MOST_NODES = 8
LOGINS = {"operator": "admin of the platform", "member": "member of the tenant acme"}


def say(text: str) -> None:
    print(text, flush=True)


def main(make: Callable[..., Launch] = Launch) -> int:
    """Run the platform that `make` returns for the options."""
    parser = argparse.ArgumentParser(prog="deploy.demo", description="The whole platform on this machine.")
    parser.add_argument("--with-parent", action="store_true", help="stop when the process that started this one ends")
    parser.add_argument("--without-programs", action="store_true", help="start nothing under the seeded claims")
    arguments = parser.parse_args()
    if arguments.with_parent:
        tether_to(os.getppid(), signal.SIGTERM)
    try:
        launch = make(options(programs=not arguments.without_programs), say=say)
    except FATAL as error:
        return fail(error)
    stop_on_signal(launch.supervisor.request_stop)
    try:
        launch.up()
        announce(launch)
        launch.supervisor.run()
    except StopRequested:
        pass
    except FATAL as error:
        return fail(error)
    finally:
        say("stopping: programs, agents, worker, scheduler, server, Valkey, PostgreSQL")
        launch.down()
    say("stopped; the state is kept, and the next start resumes it")
    return 0


def options(*, programs: bool) -> Options:
    """Read the options from $DEMO_DIR, $PORT and $NODES."""
    port = os.environ.get("PORT", "8000")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        sys.exit(f"PORT={port!r} is not a port: use 1 to 65535")
    count = os.environ.get("NODES", "1")
    if not count.isdecimal() or not 0 < int(count) <= MOST_NODES:
        sys.exit(f"NODES={count!r} is no number of nodes: use 1 to {MOST_NODES}")
    state = Path(os.environ.get("DEMO_DIR", ".demo"))
    return Options(state=state, port=int(port), programs=programs, nodes=int(count))


def stop_on_signal(stop: Callable[[], None]) -> None:
    """Stop in the same way on Ctrl-C, SIGTERM and a closed terminal."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def announce(launch: Launch) -> None:
    address = f"http://127.0.0.1:{launch.port}"
    say("")
    say(f"  pages      {address}/")
    for name, role in LOGINS.items():
        say(f"  sign in    {name} / {launch.state.password(name) or '(see the seed command)'}   ({role})")
    say(f"  API token  {launch.state.root / 'operator.token'}")
    say(f"  logs       {launch.state.root / 'logs'}")
    first = launch.nodes[0].name
    say(f"  a node     GPUCLOUD_RUN_DIR={launch.state.run_directory(first)} .venv/bin/python -m agent status")
    say(f"  commands   export GPUCLOUD_URL={address} GPUCLOUD_TOKEN_FILE={launch.state.root / 'operator.token'}")
    say("             .venv/bin/gpucloud top")
    say("")
    say(f"ready: {address}")


def fail(error: Exception) -> int:
    print(f"\nthe demo cannot start: {error}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
