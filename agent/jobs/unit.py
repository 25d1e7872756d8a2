"""The unit of systemd in which a run's keeper starts.

A unit of its own has a control group of its own, in which the kernel bounds memory, processes and processor time, and a
/tmp of its own, which ends with it. A restart of the agent's unit does not touch it.
"""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from agent.jobs.bounds import Bounds
from agent.jobs.run_directory import ENVIRONMENT

# systemd's own test for whether it runs (sd_booted(3)).
RUNNING = Path("/run/systemd/system")
SLICE = "gpucloudjobs.slice"
# As in the agent's unit, whose capabilities for other users' programs it does not have.
SANDBOX = {
    "CapabilityBoundingSet": "CAP_KILL CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE CAP_SETUID CAP_SETGID CAP_SYS_PTRACE",
    "NoNewPrivileges": "yes",
    "PrivateTmp": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "read-only",
    "ProtectKernelModules": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectHostname": "yes",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "LockPersonality": "yes",
    "KeyringMode": "private",
    "SystemCallArchitectures": "native",
}


def find_systemd_run() -> str | None:
    """Return the path of systemd-run; None where systemd does not run, or this process may not make units."""
    return shutil.which("systemd-run") if os.getuid() == 0 and RUNNING.is_dir() else None


def outside() -> list[str]:
    """Return the command that runs the command after it outside of the agent's sandbox; none where there is none."""
    systemd_run = find_systemd_run()
    return [systemd_run, "--quiet", "--collect", "--pipe", "--wait", "--"] if systemd_run is not None else []


class Places(NamedTuple):
    """The places of a run that its unit names."""

    # Of the run, and of the agent, with the claims' pages: both can be written to, for who may.
    directory: Path
    run_dir: Path
    log: Path


def command(
    systemd_run: str, name: str, places: Places, bounds: Bounds, *, most_processes: int, sandboxed: bool = True
) -> list[str]:
    """Return the command that starts the command after it as a unit of this name.

    `sandboxed`: with the agent's own sandbox, which a container engine could make no containers in.
    """
    settings = {
        "MemoryMax": bounds.memory_bytes,
        "MemorySwapMax": 0,
        "TasksMax": most_processes,
        "CPUWeight": bounds.cpu_weight,
        # The keeper outlives a program that the kernel ends for want of memory, and tells why it ended.
        "OOMPolicy": "continue",
        "OOMScoreAdjust": -900,
        # The claim's group is made below it.
        "Delegate": "yes",
        "ReadWritePaths": f"{places.directory} {places.run_dir}",
        "StandardError": f"append:{places.log}",
        **(SANDBOX if sandboxed else {}),
    }
    return [
        *(systemd_run, "--quiet", "--collect", f"--unit={name}.service", f"--slice={SLICE}", "--service-type=exec"),
        *(f"--property={key}={value}" for key, value in settings.items()),
        *(f"--setenv={key}={value}" for key, value in ENVIRONMENT.items()),
        "--",
    ]
