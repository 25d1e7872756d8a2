"""A program in a container of this machine's engine, with its share by CDI, resized while it runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import BACK_SECONDS, ROOT, Installation, docker, lines_of
from tests.platform import until

pytestmark = [
    pytest.mark.containers,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.getuid() != 0, reason="container engines read CDI specs in root's directories"),
]
BUILD = ROOT / "libvcuda" / "build"
CDI = Path("/var/run/cdi")
IMAGE = "debian:12-slim"
# Over its 3 GiB with its present use; within 8.
PROGRAM = ("/gpuload", "--json", "--memory", "1GiB", "--grow", "4GiB", "--every", "0.2", "--kernel-us", "500")


@pytest.fixture(scope="module")
def pool(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Create a pool whose node is this machine: an agent outside of containers, with a simulated GPU."""
    directory = tmp_path_factory.mktemp("host")
    installation.granted("POST", "pools/", {"name": "host"})
    made = installation.granted("POST", "nodes/", {"name": "host-1", "pool": "host"})
    node = directory / "node.sim"
    subprocess.run(
        [BUILD / "simnode", "create", node, "--name", "host-1", "--gpus", "1", "--memory", "24GiB"], check=True
    )
    run_dir = Path(f"/run/gpucloud-test-{installation.port}")
    environment = os.environ | {
        "GPUCLOUD_RUN_DIR": str(run_dir),
        "GPUCLOUD_CDI_DIR": str(CDI),
        "GPUCLOUD_SIM_NODE": str(node),
        "GPUCLOUD_ENROL_TOKEN": made["enrolment_token"],
        "LD_LIBRARY_PATH": str(BUILD / "sim"),
    }
    command = [sys.executable, "-m", "agent", "run", "--server", installation.url, "--state-dir", str(directory)]
    with (directory / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield "host"
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
        subprocess.run(["rm", "-rf", run_dir], check=True)


@pytest.mark.parametrize("options", [(), ("--read-only", "--cap-drop=ALL")], ids=["plain", "read-only"])
def test_a_program_in_a_container_is_held_and_resized(
    installation: Installation, tenant: str, pool: str, options: tuple[str, ...]
) -> None:
    claim = installation.claim(tenant, pool=pool, memory_mib=3072)
    device = f"gpucloud.io/vgpu={claim['uid']}"
    until((CDI / f"gpucloud.io-vgpu_{claim['uid']}.json").exists, what="the claim's CDI spec")
    mount = f"{BUILD / 'gpuload'}:/gpuload:ro"
    started = docker("run", "--detach", *options, "--device", device, "--volume", mount, IMAGE, *PROGRAM)
    container = started.stdout.strip()
    try:
        grown = lambda name: any(  # noqa: E731
            line.get("event") == "grow" and line.get("error_name") == name
            for line in lines_of(docker("logs", container).stdout)
        )
        until(lambda: grown("CUDA_ERROR_OUT_OF_MEMORY"), seconds=BACK_SECONDS, what="the limit to hold")
        assert not grown("CUDA_SUCCESS")
        installation.granted("PATCH", f"claims/{claim['uid']}/", {"memory_mib": 8192})
        until(lambda: grown("CUDA_SUCCESS"), seconds=BACK_SECONDS, what="the program to get what its limit now allows")
        # The release ends it, container and all.
        installation.granted("DELETE", f"claims/{claim['uid']}/")
        until(
            lambda: docker("inspect", "--format", "{{.State.Running}}", container).stdout.strip() == "false",
            seconds=BACK_SECONDS,
            what="the container to end with its claim",
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{docker('logs', container).stdout[-2000:]}") from error
    finally:
        docker("rm", "--force", container)
