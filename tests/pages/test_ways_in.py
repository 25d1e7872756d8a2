"""The lines by which a program comes in under a claim, in the API's answer and on the claim's page."""

import html

import pytest

from apps.nodes.models import Node
from apps.scheduling.services.claims.ways import ways_in
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn

NAMES = ["exec", "gpucloud", "cdi", "env-file", "systemd-run", "systemd-unit"]


def test_the_environment_of_a_claim_has_a_line_for_each_way(cast: Cast, machine: Machine) -> None:
    claim, first = placed(cast, machine)
    Node.objects.update(simulated=False)
    lines = {way["name"]: way["line"] for way in cast.max.get(f"claims/{claim.uid}/env/").body["ways"]}
    assert list(lines) == NAMES
    uid, directory = claim.uid, f"/run/gpucloud/claims/{claim.uid}"
    devices = f"--device nvidia.com/gpu={first.gpu.uuid} --device gpucloud.io/vgpu={uid}"
    assert lines["cdi"] == f"docker run {devices} IMAGE COMMAND"
    assert f"--env-file {directory}/env -v {directory}:{directory}:ro" in lines["env-file"]
    assert lines["systemd-unit"] == f"EnvironmentFile={directory}/env"


def test_a_simulated_node_has_no_driver_to_bring_in(cast: Cast, machine: Machine) -> None:
    claim, _ = placed(cast, machine)
    lines = {way.name: way.line for way in ways_in(claim)}
    assert lines["cdi"] == f"docker run --device gpucloud.io/vgpu={claim.uid} IMAGE COMMAND"


def test_a_claim_that_waits_has_no_way_in(cast: Cast, machine: Machine) -> None:
    assert ways_in(ask(cast)) == []


@pytest.mark.parametrize("name", ["cdi", "env-file", "systemd-run", "systemd-unit"])
def test_the_claims_page_has_the_line_with_a_button_that_copies_it(
    cast: Cast, machine: Machine, browser: SignIn, name: str
) -> None:
    claim, _ = placed(cast, machine)
    way = next(one for one in ways_in(claim) if one.name == name)
    text = html.unescape(browser("anna").get(f"/claims/{claim.uid}/").content.decode())
    assert way.line in text
    assert f'aria-label="Copy: {way.title}"' in text
