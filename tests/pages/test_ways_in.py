"""Launch commands for a program under a claim, in the API's answer and on the claim's page."""

import html

import pytest

from apps.nodes.models import Node
from apps.scheduling.services.claims.launch_methods import launch_methods
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn

NAMES = ["gpucloud", "exec", "cdi", "env-file", "systemd-run", "systemd-unit"]


def test_the_environment_of_a_claim_has_a_line_for_each_way(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine)
    Node.objects.update(simulated=False)
    lines = {way["name"]: way["line"] for way in cast.max.get(f"claims/{claim.uid}/env/").body["ways"]}
    assert list(lines) == NAMES
    uid, directory = claim.uid, f"/run/gpucloud/claims/{claim.uid}"
    devices = f"--device nvidia.com/gpu={first.gpu.uuid} --device gpucloud.io/vgpu={uid}"
    assert lines["cdi"] == f"docker run {devices} IMAGE COMMAND"
    assert f"--env-file {directory}/env -v {directory}:{directory}:ro" in lines["env-file"]


def test_lines_without_cdi_bring_in_what_holds_a_program_without_its_environment(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    Node.objects.update(simulated=False)
    lines = {way["name"]: way["line"] for way in cast.max.get(f"claims/{claim.uid}/env/").body["ways"]}
    directory = f"/run/gpucloud/claims/{claim.uid}"
    required = "/run/gpucloud/container/require-limits:/etc/gpucloud/require-limits"
    assert f"-v {directory}/usage:{directory}/usage -v" in lines["env-file"]
    assert f"-v {required}:ro IMAGE" in lines["env-file"]
    properties = [
        f"EnvironmentFile={directory}/env",
        "TemporaryFileSystem=/etc/gpucloud:ro",
        f"BindReadOnlyPaths={required}",
        f"ReadWritePaths={directory}/usage",
    ]
    assert lines["systemd-unit"].splitlines() == properties
    assert lines["systemd-run"] == f"systemd-run {' '.join(f'--property={one}' for one in properties)} COMMAND"


def test_a_simulated_node_has_no_driver_to_bring_in(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    lines = {way.name: way.line for way in launch_methods(claim)}
    assert lines["cdi"] == f"docker run --device gpucloud.io/vgpu={claim.uid} IMAGE COMMAND"
    # Without CDI nothing would add the simulated driver and its node.
    assert "env-file" not in lines


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("/opt/gpucloud-agent/current/libvcuda.so", "gpucloud-agent"),
        ("/me/cloud/libvcuda/build/libvcuda.so", "/me/cloud/agent/gpucloud-agent"),
        ("/srv/gpucloud/libvcuda/build/libvcuda.so", "gpucloud-agent"),
    ],
)  # fmt: skip
def test_lines_name_the_agent_by_the_command_that_its_machine_has(
    cast: Cast, machine: Machine, library: str, command: str
) -> None:
    claim, _ = placed(cast, machine)
    Node.objects.update(library=library, run_dir="/dev/shm/gpucloud-1000-abc", simulated=False)  # noqa: S108
    body = cast.max.get(f"claims/{claim.uid}/env/").body
    lines = {way["name"]: way["line"] for way in body["ways"]}
    assert lines["exec"] == body["command"] == f"{command} exec {claim.uid} -- COMMAND"
    assert f"{command} give {claim.uid} --user UID" in next(way["note"] for way in body["ways"] if way["name"] == "cdi")
    # Its agent does not use the machine's own directory of specs.
    assert lines["cdi"].startswith("podman --cdi-spec-dir /dev/shm/gpucloud-1000-abc/cdi run --device ")


def test_a_claim_that_waits_has_no_way_in(cast: Cast, machine: Machine) -> None:
    assert launch_methods(ask(cast)) == []


@pytest.mark.parametrize("name", ["cdi", "env-file", "systemd-run", "systemd-unit"])
def test_the_claims_page_has_the_line_with_a_button_that_copies_it(
    cast: Cast, machine: Machine, browser: SignIn, name: str
) -> None:
    claim, _ = placed(cast, machine)
    Node.objects.update(simulated=False)
    claim.refresh_from_db()
    way = next(one for one in launch_methods(claim) if one.name == name)
    text = html.unescape(browser("anna").get(f"/claims/{claim.uid}/").content.decode())
    assert way.line in text
    assert f'aria-label="Copy: {way.title}"' in text
