"""The commands of the tutorial of moves, rotation, groups and schedules, on a platform with two nodes in one pool."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_tutorial import STEP, Shell
from tests.platform import ROOT, Platform

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the output of each step of the page."""
    clone = tmp_path_factory.mktemp("clone")
    for name in (".venv", "agent", "libvcuda"):
        (clone / name).symlink_to(ROOT / name)
    state = Path(tmp_path_factory.mktemp("moves")) / "state"
    with Platform(state, environment={"NODES": "2"}) as platform:
        platform.granted("GET", "nodes/sim-3/")
        environment = {"PORT": str(platform.port), "DEMO_DIR": str(state), "PATH": os.environ["PATH"]}
        shell = Shell(clone, environment | {"HOME": str(clone)})
        steps = dict(STEP.findall((ROOT / "docs" / "tutorial-moves.md").read_text()))
        try:
            yield {name: shell.run(text) for name, text in steps.items()}
        finally:
            shell.close()


def test_a_running_program_goes_on_on_another_gpu(outputs: dict[str, str]) -> None:
    assert "the same process runs" in outputs["move"], outputs["move"]
    assert re.search(r"^pause +\S", outputs["move"], re.MULTILINE), outputs["move"]


def test_a_claim_moves_to_the_other_node_and_its_program_ends(outputs: dict[str, str]) -> None:
    assert "the program ended" in outputs["node"], outputs["node"]
    assert '"node": "sim-' in outputs["node"], outputs["node"]
    assert "error" not in outputs["node"].lower(), outputs["node"]


def test_nine_claims_take_turns_on_eight_gpus(outputs: dict[str, str]) -> None:
    found = outputs["rotate"]
    assert found.count("turn-") >= 9, found
    assert "suspend" in found or "resum" in found, found
    assert "Rotates" in found, found


def test_a_group_grows_and_its_members_are_a_table(outputs: dict[str, str]) -> None:
    rows = [line.split() for line in outputs["group"].splitlines()]
    ranks = [row[0] for row in rows if row and row[0].isdigit()]
    assert ranks == ["0", "1", "2"], outputs["group"]


def test_a_claim_has_a_weekly_window(outputs: dict[str, str]) -> None:
    assert "daily 00:00-24:00" in outputs["schedule"], outputs["schedule"]
