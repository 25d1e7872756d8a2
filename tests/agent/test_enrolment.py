"""Enrolment of an agent as a node."""

import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent import wire
from tests.agent.control import NODE_UID, Connection, Control
from tests.agent.stage import Stage, eventually


def identity(stage: Stage) -> dict[str, str]:
    text: dict[str, str] = json.loads((stage.state_dir / "agent.json").read_text())
    return text


async def test_the_first_start_enrols_with_the_digest_of_its_own_secret(
    stage: Stage, link: Connection, control: Control
) -> None:
    mine = identity(stage)
    assert control.enrolments == [
        {"token": "gpe_once", "key_digest": hashlib.sha256(mine["secret"].encode()).hexdigest()}
    ]
    assert link.authorization == f"Bearer gpn_{NODE_UID}.{mine['secret']}"
    assert len(mine["secret"]) >= 43  # 32 random bytes
    assert stat.S_IMODE((stage.state_dir / "agent.json").stat().st_mode) == 0o600
    assert mine["secret"] not in stage.log_text()


async def test_hello_says_what_the_machine_has(stage: Stage, link: Connection) -> None:
    hello = await link.expect(wire.Hello)
    assert [gpu.index for gpu in hello.gpus] == [0, 1, 2, 3]
    assert all(gpu.memory_bytes == 24 << 30 for gpu in hello.gpus)
    assert len({gpu.uuid for gpu in hello.gpus}) == 4
    assert hello.run_dir == str(stage.run_dir)
    assert hello.simulated


async def test_a_lost_answer_is_repaired_by_asking_again_with_the_same_digest(stage: Stage, control: Control) -> None:
    control.enrol_faults = ["drop", (503, {"title": "Busy"}), "drop"]
    stage.start()
    await control.connection()
    assert len(control.enrolments) == 4
    assert len({request["key_digest"] for request in control.enrolments}) == 1


async def test_an_agent_killed_before_the_answer_keeps_its_secret(stage: Stage, control: Control) -> None:
    control.enrol_faults = ["drop"] * 1000
    stage.start()
    await eventually(lambda: control.enrolments)
    await stage.kill()
    control.enrol_faults = []
    stage.start()
    await control.connection()
    assert len({request["key_digest"] for request in control.enrolments}) == 1


async def test_a_refused_token_ends_the_agent_with_the_servers_words(stage: Stage, control: Control) -> None:
    control.enrol_faults = [(403, {"title": "Token used", "detail": "This token was used by node sim-9."})]
    stage.start()
    assert await stage.ended() == 3
    assert "This token was used by node sim-9." in stage.log_text()


async def test_without_a_token_the_agent_says_what_to_do(stage: Stage) -> None:
    stage.start(GPUCLOUD_ENROL_TOKEN="")
    assert await stage.ended() == 3
    assert "GPUCLOUD_ENROL_TOKEN" in stage.log_text()


async def test_a_pod_of_a_cluster_shows_its_token_as_it_is_at_that_moment(
    stage: Stage, control: Control, tmp_path: Path
) -> None:
    shown = tmp_path / "token"
    shown.write_text("first\n")
    control.enrol_faults = [(503, {"title": "Busy"})] * 1000
    stage.start(GPUCLOUD_ENROL_TOKEN="", GPUCLOUD_CLUSTER="kube", GPUCLOUD_CLUSTER_TOKEN=str(shown))
    await eventually(lambda: control.enrolments)
    shown.write_text("second")
    control.enrol_faults = []
    await control.connection()
    asked = {"cluster": "kube", "key_digest": hashlib.sha256(identity(stage)["secret"].encode()).hexdigest()}
    assert control.enrolments[0] == asked | {"token": "first"}
    assert control.enrolments[-1] == asked | {"token": "second"}


async def test_a_pod_whose_cluster_is_not_connected_yet_waits_for_it(
    stage: Stage, control: Control, tmp_path: Path
) -> None:
    shown = tmp_path / "token"
    shown.write_text("first\n")
    control.enrol_faults = [(403, {"title": "Enrolment refused", "detail": "No cluster of that name."})]
    stage.start(GPUCLOUD_ENROL_TOKEN="", GPUCLOUD_CLUSTER="kube", GPUCLOUD_CLUSTER_TOKEN=str(shown))
    await control.connection()
    assert len(control.enrolments) == 2
    assert "No cluster of that name." in stage.log_text()


async def test_a_pod_without_its_token_says_what_to_do(stage: Stage, tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    stage.start(GPUCLOUD_ENROL_TOKEN="", GPUCLOUD_CLUSTER="kube", GPUCLOUD_CLUSTER_TOKEN=missing)
    assert await stage.ended() == 3
    assert "for the audience gpucloud" in stage.log_text()


async def test_a_second_start_needs_no_token(stage: Stage, link: Connection, control: Control) -> None:
    await stage.kill()
    stage.start(GPUCLOUD_ENROL_TOKEN="")
    await control.connection()
    assert len(control.enrolments) == 1


@pytest.mark.parametrize("arguments", [["--server", "ftp://x"], []])
async def test_a_wrong_address_is_refused_at_once(stage: Stage, arguments: list[str]) -> None:
    command = [sys.executable, "-m", "agent", "run", "--state-dir", str(stage.state_dir), *arguments]
    told = subprocess.run(command, env=stage.environment(), capture_output=True, check=False, timeout=20)  # noqa: ASYNC221
    assert told.returncode == 2
    assert b"--server" in told.stderr


async def test_a_machine_without_nvml_says_so_and_keeps_running(stage: Stage, control: Control, tmp_path: Path) -> None:
    stage.start(GPUCLOUD_SIM_DRIVER=str(tmp_path / "nothing"))
    link = await control.connection()
    assert (await link.expect(wire.Hello)).gpus == []
    assert "no-gpus" in stage.log_text()
    assert (await link.expect(wire.Usage)).gpus == []


async def test_two_agents_do_not_share_a_run_directory(stage: Stage, link: Connection) -> None:
    first = stage.agent
    stage.start()
    assert await stage.ended() == 1
    assert "Another agent runs in" in stage.log_text()
    stage.agent = first
