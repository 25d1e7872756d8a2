"""The Slurm recipe: a real cluster of one node, whose jobs get shares by `deploy/slurm/gpucloud-slurm`."""

import os
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.claims import GPULOAD
from tests.cli.commands import live_claims
from tests.platform import ROOT, Platform, until
from tests.ports import free_port

SCRIPT = ROOT / "deploy" / "slurm" / "gpucloud-slurm"
SIMULATED = ROOT / "libvcuda" / "build" / "sim"
PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "mungekey")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]
SHARE = "gpucloud core=30 memory=1GiB"

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not on the PATH: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts prologs as root"),
]


class Cluster:
    """A Slurm cluster of this machine alone, with munge."""

    def __init__(self, directory: Path, platform: Platform, tenant: str) -> None:
        self.directory, self.host = directory, socket.gethostname().split(".")[0]
        self.configuration = directory / "slurm.conf"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._write_settings(platform, tenant)
        self._write_programs()
        self._write_configuration()

    def _write_settings(self, platform: Platform, tenant: str) -> None:
        (self.directory / "token").write_text(
            platform.granted("POST", "tokens/", {"name": "slurm", "tenant": tenant, "role": "member"})["token"]
        )
        (self.directory / "token").chmod(0o600)
        (seeded, *_) = platform.granted("GET", "claims/?state=active")["results"]
        place = platform.granted("GET", f"claims/{seeded['uid']}/env/")
        settings = {
            "PATH": f"{self.directory}:/usr/bin:/bin",
            "GPUCLOUD_NODE": place["node"],
            "GPUCLOUD_SLURM_POOL": seeded["pool"],
            "GPUCLOUD_RUN_DIR": str(Path(place["agent_socket"]).parent),
            "GPUCLOUD_SLURM_STATE": str(self.directory / "jobs"),
            "GPUCLOUD_URL": platform.url,
            "GPUCLOUD_TOKEN_FILE": str(self.directory / "token"),
            "GPUCLOUD_TENANT": tenant,
        }
        (self.directory / "slurm.env").write_text("".join(f"export {key}={value}\n" for key, value in settings.items()))

    def _write_programs(self) -> None:
        """Write the prolog, and the two commands of this checkout that it calls."""
        for name, line in {
            "gpucloud": f"{sys.executable} -m gpucloud_cli",
            "gpucloud-agent": f"{sys.executable} -m agent",
            "prolog": str(SCRIPT),
        }.items():
            program = self.directory / name
            program.write_text(
                f"#!/bin/sh\nexport PYTHONPATH={ROOT}:{ROOT / 'cli'}\n"
                f'export GPUCLOUD_SLURM_SETTINGS={self.directory / "slurm.env"}\nexec {line} "$@"\n'
            )
            program.chmod(0o755)

    def _write_configuration(self) -> None:
        prolog, where = self.directory / "prolog", self.directory
        lines = [
            f"ClusterName=trial\nSlurmctldHost={self.host}(127.0.0.1)\nSlurmUser=root",
            f"AuthType=auth/munge\nAuthInfo=socket={where}/munge\nSlurmctldPort={free_port()}\nSlurmdPort={free_port()}",
            f"StateSaveLocation={where}/state\nSlurmdSpoolDir={where}/spool",
            f"SlurmctldPidFile={where}/c.pid\nSlurmdPidFile={where}/d.pid",
            f"SlurmctldLogFile={where}/c.log\nSlurmdLogFile={where}/d.log",
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2",
            f"Prolog={prolog}\nTaskProlog={prolog}\nEpilog={prolog}\nPrologFlags=Alloc",
            f"NodeName={self.host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN",
            f"PartitionName=gpu Nodes={self.host} Default=YES MaxTime=60 State=UP",
        ]
        self.configuration.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        key = self.directory / "key"
        subprocess.run(["mungekey", "-c", "-k", key], check=True)
        munge: list[str | Path] = ["munged", "-F", "--socket", self.directory / "munge", "--key-file", key]
        munge += ["--pid-file", self.directory / "m.pid", "--log-file", self.directory / "m.log"]
        munge += ["--seed-file", self.directory / "seed", "--force"]
        lines: list[list[str | Path]] = [munge, ["slurmctld", "-D"], ["slurmd", "-D"]]
        for line in lines:
            self.processes.append(
                subprocess.Popen(
                    line, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory
                )
            )
            if line is munge:
                until((self.directory / "munge").exists, what="munge")
        until(self.is_idle, seconds=60, what="the node to be idle")

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            finally:
                process.kill()
                process.wait()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "SLURM_CONF": str(self.configuration),
            # A simulated driver is not where the machine's own would be.
            "LD_LIBRARY_PATH": str(SIMULATED),
        }

    def is_idle(self) -> bool:
        """Return True if the node waits for jobs; False also while the controller does not answer yet."""
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%t"], env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout.split() == ["idle"]

    def run(self, comment: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a job to its end; return its exit code and its output."""
        return subprocess.run(
            ["srun", "--time", "5", "--comment", comment, *command],
            env=self.environment, capture_output=True, text=True, check=False, timeout=120, cwd=self.directory,
        )  # fmt: skip


@pytest.fixture
def tenant(platform: Platform) -> str:
    return platform.new_tenant(f"slurm-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def cluster(tmp_path: Path, platform: Platform, tenant: str) -> Iterator[Cluster]:
    running = Cluster(tmp_path, platform, tenant)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def test_a_job_has_the_share_that_its_comment_names(cluster: Cluster, platform: Platform, tenant: str) -> None:
    fits = cluster.run(SHARE, GPULOAD, "--memory", "800MiB", "--seconds", "1")
    assert (fits.returncode, "CUDA_SUCCESS" in fits.stdout) == (0, True), fits
    until(lambda: not live_claims(platform, tenant), seconds=60, what="the claim to be released")
    (claim,) = platform.granted("GET", f"claims/?tenant={tenant}&state=released")["results"]
    assert (claim["core_request"], claim["memory_mib"], claim["lease_seconds"]) == (30, 1024, 300)
    too_much = cluster.run(SHARE, GPULOAD, "--memory", "2GiB", "--seconds", "1")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in too_much.stdout
    without = cluster.run("a plain job", "sh", "-c", "echo ${LD_PRELOAD:-none}")
    assert without.stdout == "none\n"
    until(lambda: not list((cluster.directory / "jobs").iterdir()), seconds=30, what="nothing left of the jobs")


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("gpucloud core=30 mem=1GiB", "mem=1GiB is unknown"),
        ("gpucloud", "write both"),
        ("gpucloud /etc/passw*", "/etc/passw* is unknown"),
        ("gpucloud core=300 memory=1GiB", "300 is not in the range"),
        ("gpucloud core=$(reboot) memory=1GiB", "$(reboot)"),
    ],
)
def test_a_job_that_gets_no_share_ends_with_the_cause_and_the_node_stays(
    cluster: Cluster, platform: Platform, tenant: str, comment: str, words: str
) -> None:
    refused = cluster.run(comment, "echo", "started")
    assert refused.returncode != 0
    assert words in refused.stdout
    assert "started" not in refused.stdout
    until(cluster.is_idle, seconds=60, what="the node to be idle again")
    assert not live_claims(platform, tenant)
