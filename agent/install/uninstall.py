"""Removal of the agent: of all that an install and the agent itself have made, and nothing else."""

import json
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from agent.host import processes
from agent.host.mps import find_groups, find_left
from agent.install import systemd
from agent.install.layout import Layout
from agent.jobs.run_directory import RunDirectory

END_SECONDS = 10.0
# Beside the time between SIGTERM and SIGKILL: what programs of jobs leave behind is given some, too.
JOBS_SECONDS = 10.0
_UCRED = struct.Struct("3i")


class Refused(Exception):
    """Refusal that changes nothing; the message says why."""


def uninstall(layout: Layout, *, force: bool, say: Callable[[str], None]) -> None:
    """Remove the agent. Raises Refused, OSError."""
    if not layout.home.is_dir():
        raise Refused(f"No bundle installed an agent here: there is no {layout.home}.")
    claims = layout.claims()
    if claims and not force:
        raise Refused(
            f"{len(claims)} claims lie on this machine ({', '.join(claims[:4])}{', …' if len(claims) > 4 else ''}). "
            "Cordon the node, release them and try again. With --force their programs run on under their last limits, "
            "which can no longer be changed or ended."
        )
    if layout.has_systemd:
        systemd.take_away(layout)
    else:
        layout.unit.unlink(missing_ok=True)
    _end_agent(layout)
    _end_mps(layout)
    layout.command.unlink(missing_ok=True)
    _remove_specs(layout)
    _end_keepers(layout.jobs)
    own = (layout.own_run, layout.own_state, layout.own_jobs)
    used = (layout.run, layout.state, layout.jobs)
    layout.settings.unlink(missing_ok=True)
    for directory in (*own, layout.home):
        shutil.rmtree(directory, ignore_errors=True)
    for directory in used:
        if directory not in own and directory.exists():
            say(f"{directory} stays, for the settings named it: others may have files there.")
    say("The agent is gone from this machine. In the control plane: `gpucloud node forget NAME`.")


def _end_mps(layout: Layout) -> None:
    """End the MPS control daemons, which outlive the agent, and their servers."""
    for place in find_groups(layout.run / "mps").values():
        for process in find_left(place.pipe):
            processes.send(process, signal.SIGTERM)
        place.remove()


def _end_keepers(directory: Path) -> None:
    """End the programs of jobs, whose keepers outlive the agent."""
    kept = [run for run in map(RunDirectory, directory.glob("*-*-*-*-*")) if run.exists and run.is_kept()]
    for run in kept:
        run.stop()
    end = time.monotonic() + END_SECONDS + JOBS_SECONDS
    while any(run.is_kept() for run in kept) and time.monotonic() < end:
        time.sleep(0.05)


def _remove_specs(layout: Layout) -> None:
    """Remove this agent's CDI specs; those of other agents and other vendors stay."""
    for path in (layout.root / "var/run/cdi").glob("gpucloud.io-vgpu_*.json"):
        try:
            mounted = json.loads(path.read_text())["devices"][0]["containerEdits"]["mounts"][0]["hostPath"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if Path(mounted).parent == layout.run / "claims":
            path.unlink(missing_ok=True)


def _end_agent(layout: Layout) -> None:
    """End an agent that was started by hand, too; the kernel names its pid by the socket."""
    path = layout.run / "agent.sock"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.connect(str(path))
            pid, _, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        end = time.monotonic() + END_SECONDS
        # It removes its socket as its last act.
        while path.exists() and time.monotonic() < end:
            time.sleep(0.02)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
