"""The agent's command line; `python -m agent --help` lists the commands."""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from agent.install import command as installing

EXIT_FAILED = 1
EXIT_USAGE = 2

RUN_WORDS = """\
The daemon. Its first start enrols the node with the one-time token in GPUCLOUD_ENROL_TOKEN; later ones need none.
SIGTERM ends it at once; pages and programs stay, under their last limits, and the next start adopts them."""
RUN_MORE = """\
environment:
  GPUCLOUD_ENROL_TOKEN   one-time token (gpe_...) of a new node
  GPUCLOUD_SERVER        default for --server
  GPUCLOUD_STATE_DIR     default for --state-dir (else /var/lib/gpucloud-agent)
  GPUCLOUD_RUN_DIR       pages and sockets (else /run/gpucloud as root, /dev/shm/gpucloud-UID-HASH otherwise)
  GPUCLOUD_CDI_DIR       CDI specs for containers; off: none (else /var/run/cdi, or cdi/ in another run directory)
  GPUCLOUD_LIBRARY       libvcuda.so; libvcuda-pages.so and vcuda-arbiter lie beside it
  GPUCLOUD_SIM_NODE      a virtual node's file: simulated GPUs instead of NVML's
  GPUCLOUD_SIM_DRIVER    directory of the simulated driver (else sim/ beside GPUCLOUD_LIBRARY)
  GPUCLOUD_AUDIT         warn, kill or off: what to do with unlimited GPU processes; overrides the pool
  GPUCLOUD_METRICS       HOST:PORT where Prometheus reads /metrics, or a port of loopback (off); gpu-manager uses 5678
  GPUCLOUD_KUBELET_DIR   directory of kubelet.sock, like /var/lib/kubelet/device-plugins: be its device plugin (off)
  GPUCLOUD_DRA           on: be that kubelet's driver for Dynamic Resource Allocation, too (off)
  GPUCLOUD_DEVICE_PLUGIN off: be its driver alone (on)
  GPUCLOUD_KUBELET_ROOT  its --root-dir (else the directory above)
  GPUCLOUD_POD_RESOURCES the kubelet's pod-resources socket (else pod-resources/kubelet.sock in its root)
  GPUCLOUD_KUBERNETES_NODE  this machine's node name in the cluster (else its host name)
  GPUCLOUD_CLUSTER       enrol through this cluster (its name at the server), without a one-time token
  GPUCLOUD_CLUSTER_TOKEN file of the pod's token for that enrolment (else /var/run/secrets/gpucloud/token)
  GPUCLOUD_CGROUPS       off: a claim's programs stay in their original control groups (on)
  GPUCLOUD_HEALTH_SECONDS       seconds between two reports of the GPUs' health (30)
  GPUCLOUD_HEALTH_HOLD_SECONDS  seconds that a recovered GPU takes no new claims (300)
  GPUCLOUD_LEAST_FREE_MIB       the node reports less free space in the state or run directory (16)
  GPUCLOUD_DRIFT_SECONDS seconds between two checks for changed pages (5)
  GPUCLOUD_RELEASE_GRACE_SECONDS  seconds between SIGTERM and SIGKILL when a claim is released (10)
  GPUCLOUD_SUSPEND_MEMORY_MIB     host memory that suspended claims may take together (half of what is available)
  GPUCLOUD_SUSPEND_SECONDS        seconds that a driver call of a suspension may take, beside its size (30)
  GPUCLOUD_CARRY                  HOST:PORT at which other agents bring running programs to this one (off)
  GPUCLOUD_CARRY_UIDS             users whose programs it takes from them, like 1000,2000-2999 (none)
  GPUCLOUD_CRIU                   CRIU 4, which carries them (else criu of PATH)
  GPUCLOUD_MPS_CONTROL            nvidia-cuda-mps-control (that of PATH); off: no back end mps
  GPUCLOUD_JOBS                   users of jobs' programs, one a tenant, like 61000-61999; self: the agent's own (off)
  GPUCLOUD_JOBS_DIR               directory of their runs, on a disk (else the state directory's name with -jobs)
  GPUCLOUD_JOBS_MEMORY_MIB        host memory of each run (its claim's part of the node's GPUs, at least 2,048)
  GPUCLOUD_JOBS_DISK_MIB          disk space of each run (20,480)
  GPUCLOUD_JOBS_ENGINE            podman or docker, for jobs that name a container image (off)
  GPUCLOUD_JOBS_IMAGES            the images that it may run: registries, or repositories, separated by commas
  GPUCLOUD_JOBS_ENGINE_OPTIONS    options that its command `run` needs on this machine, like --runtime=nvidia
  GPUCLOUD_BACKOFF_CAP_SECONDS    longest pause in seconds between two connection attempts (8)

exit codes: 0 ended by a signal, 1 failed, 2 bad usage or settings, 3 not enrolled, 4 the credential was refused"""
EXEC_WORDS = """\
Start a program under a claim's limits. This process becomes the program: its pid, exit code and signals are its own."""
EXEC_MORE = """\
environment, either of:
  GPUCLOUD_URL with GPUCLOUD_TOKEN or GPUCLOUD_TOKEN_FILE      ask the control plane for the claim's secret
  GPUCLOUD_CLAIM_SECRET with GPUCLOUD_AGENT_SOCKET             needs no control plane
The token and the secret are not passed on to the program.

exit codes: the program's, or 125 the claim cannot be used, 126 the command cannot be run, 127 it was not found,
2 bad usage"""
CHECK_MORE = """\
It changes nothing. A running agent runs the checks itself, inside its unit's sandbox. Without a running agent, or for
a user other than root and the agent's own, this command runs them; the last line says which. It reads the same
environment variables as `agent run`.

exit codes: 0 nothing failed, 1 something did, 2 bad usage or settings"""

GPUS_WORDS = """\
Print temperature, ECC errors, performance counters (GPM) and processes of this machine's GPUs, as NVML gives them. It
needs no server and no running agent, and changes nothing."""
ENROL_WORDS = """\
Exchange the one-time token in GPUCLOUD_ENROL_TOKEN for a key of this machine's own. An enrolled node stays enrolled."""
GIVE_WORDS = """\
Let another user's programs run under a claim, before a container or a unit of that user starts: that user becomes the
owner of the claim's usage page. Without --user, you do. The claim is opened as by `agent exec`."""

RAW = argparse.RawDescriptionHelpFormatter
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no other name
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def main() -> int:
    """Run the command named on the command line; return its exit code."""
    options = _parser().parse_args()
    command: Callable[[argparse.Namespace], int] = options.call
    return command(options)


def _parser() -> argparse.ArgumentParser:
    words = "The gpucloud node agent: limits and watches the GPU programs of one machine."
    parser = argparse.ArgumentParser(prog="agent", description=words)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="the daemon", description=RUN_WORDS, epilog=RUN_MORE, formatter_class=RAW)
    run.add_argument("--server", metavar="URL", help="address of the control plane, like http://127.0.0.1:8000")
    run.add_argument("--state-dir", metavar="DIR", help="directory of the identity and the last wanted state")
    run.set_defaults(call=_run)
    _add_launch_commands(commands)
    _add_status_and_check(commands)
    _add_gpus(commands)
    _add_installation(commands)
    return parser


def _add_launch_commands(commands: Commands) -> None:
    launch = commands.add_parser(
        "exec",
        help="start a program under a claim",
        description=EXEC_WORDS,
        epilog=EXEC_MORE,
        formatter_class=RAW,
        usage="agent exec [-h] [--wait SECONDS] [--movable FILE] CLAIM -- COMMAND [ARGUMENT ...]",
    )
    launch.add_argument(
        "--wait", type=_seconds, default=10.0, metavar="SECONDS", help="longest wait until the claim is in force (10)"
    )
    launch.add_argument(
        "--movable",
        type=Path,
        metavar="FILE",
        help="so that it can be carried to another node while it runs: without a terminal, its output to this file",
    )
    launch.add_argument("claim", type=_uid, metavar="CLAIM", help="the claim's uid")
    launch.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    launch.set_defaults(call=_exec, parser=launch)
    give = commands.add_parser(
        "give", help="let a user's programs run under a claim", description=GIVE_WORDS, formatter_class=RAW
    )
    give.add_argument("claim", type=_uid, metavar="CLAIM", help="the claim's uid")
    give.add_argument("--user", type=_user, metavar="UID[:GID]", help="the user; only root may name another user")
    give.set_defaults(call=_give)


def _add_status_and_check(commands: Commands) -> None:
    status = commands.add_parser(
        "status",
        help="list the agent's claims and runs",
        description="Print the claims and the runs of jobs that this machine's agent manages.",
    )
    status.add_argument("--run-dir", metavar="DIR", help="of the agent (else GPUCLOUD_RUN_DIR, or the default)")
    status.add_argument("--state-dir", metavar="DIR", help="of the agent, to find its default run directory")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(call=_status)
    check = commands.add_parser(
        "check",
        help="check this machine for what an agent needs",
        description="Check everything that an agent needs; print what is missing and how to fix it.",
        epilog=CHECK_MORE,
        formatter_class=RAW,
    )
    check.add_argument("--server", metavar="URL", help="the control plane's address (else GPUCLOUD_SERVER)")
    check.add_argument("--state-dir", metavar="DIR", help="of the agent (else GPUCLOUD_STATE_DIR, or the default)")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.add_argument("--here", action="store_true", help="run the checks in this process even if an agent runs")
    check.set_defaults(call=_check)


def _add_gpus(commands: Commands) -> None:
    gpus = commands.add_parser(
        "gpus", help="print the health of this machine's GPUs", description=GPUS_WORDS, formatter_class=RAW
    )
    gpus.add_argument("--seconds", type=_seconds, default=1.0, help="time over which GPM measures (1)")
    gpus.set_defaults(call=_gpus)


def _add_installation(commands: Commands) -> None:
    enrol = commands.add_parser("enrol", help="make this machine a node", description=ENROL_WORDS)
    enrol.add_argument("--server", metavar="URL", help="the control plane's address (else GPUCLOUD_SERVER)")
    enrol.add_argument("--state-dir", metavar="DIR", help="of the agent (else GPUCLOUD_STATE_DIR, or the default)")
    enrol.add_argument("--anew", action="store_true", help="enrol again: drop this machine's key first")
    enrol.set_defaults(call=_enrol)
    installing.add_upgrade(commands.add_parser("upgrade", help="replace the agent with the server's version"))
    installing.add_uninstall(commands.add_parser("uninstall", help="remove the agent from this machine"))


def _uid(text: str) -> str:
    if not UID.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a claim's uid (8-4-4-4-12 hex digits)")
    return text


def _user(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a user's number, like 1000 or 1000:1000")
    return int(found[1]), int(found[2] or found[1])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _fail(words: object, code: int) -> int:
    sys.stderr.write(f"gpucloud: {words}\n")
    return code


# Each command imports what it needs: `exec` starts in tens of milliseconds because it loads no websocket and no NVML.
def _run(options: argparse.Namespace) -> int:
    from agent import runner  # noqa: PLC0415

    return runner.run(server=options.server, state_dir=options.state_dir)


def _enrol(options: argparse.Namespace) -> int:
    from agent import runner  # noqa: PLC0415

    return runner.enrol(server=options.server, state_dir=options.state_dir, anew=options.anew)


def _exec(options: argparse.Namespace) -> int:
    from agent.launch import execution  # noqa: PLC0415

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        options.parser.error("what to start? agent exec CLAIM -- COMMAND [ARGUMENT ...]")
    if options.movable is not None and (code := execution.detach()) is not None:
        return code
    try:
        execution.launch(options.claim, command, wait_seconds=options.wait, output=options.movable)
    except execution.LaunchError as error:
        return _fail(error, error.code)
    except KeyboardInterrupt:
        return 130


def _give(options: argparse.Namespace) -> int:
    from agent.launch import execution  # noqa: PLC0415

    try:
        execution.give(options.claim, options.user)
    except execution.LaunchError as error:
        return _fail(error, error.code)
    return 0


def _status(options: argparse.Namespace) -> int:
    from agent import rundir  # noqa: PLC0415
    from agent.local_api import status  # noqa: PLC0415

    run_dir = options.run_dir or os.environ.get("GPUCLOUD_RUN_DIR")
    state_dir = options.state_dir or os.environ.get("GPUCLOUD_STATE_DIR") or "/var/lib/gpucloud-agent"
    try:
        found = status.ask(Path(run_dir) if run_dir else rundir.default(Path(state_dir)))
    except status.StatusError as error:
        return _fail(error, EXIT_FAILED)
    sys.stdout.write((status.as_json(found) if options.json else status.as_table(found)) + "\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    from agent import settings  # noqa: PLC0415
    from agent.check import findings, words  # noqa: PLC0415

    try:
        chosen = settings.read(server=options.server, state_dir=options.state_dir, environment=os.environ)
    except settings.SettingsError as error:
        return _fail(error, EXIT_USAGE)
    found = findings.find(chosen, here=options.here)
    sys.stdout.write((words.as_json(found) if options.json else words.as_table(found)) + "\n")
    sys.stdout.flush()
    return EXIT_FAILED if any(check.state == "failed" for check in found.checks) else 0


def _gpus(options: argparse.Namespace) -> int:
    from agent import settings  # noqa: PLC0415
    from agent.check import readings  # noqa: PLC0415

    try:
        table = readings.describe(settings.read_nvml_library(os.environ), seconds=options.seconds)
    except readings.NoGpus as error:
        return _fail(error, EXIT_FAILED)
    sys.stdout.write(table + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
