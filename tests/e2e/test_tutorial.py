"""The tutorial's own commands, run as a newcomer would, against a whole platform."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.platform import ROOT, Platform

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

STEP = re.compile(r"<!-- step: (\w+) -->\n```sh\n(.*?)```", re.DOTALL)
END = "--- end of step ---"


class Shell:
    """A bash that keeps its variables from step to step."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "-u", "-o", "pipefail"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, text: str) -> str:
        """Return the output of these lines."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{text}\necho; echo '{END}'\n")
        self._bash.stdin.flush()
        return "".join(iter(self._bash.stdout.readline, f"{END}\n"))

    def close(self) -> None:
        """End it."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.wait(10)
        assert self._bash.stdout is not None
        self._bash.stdout.close()


@pytest.fixture(scope="module")
def outputs(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the output of each step of the tutorial."""
    clone = tmp_path_factory.mktemp("clone")
    for name in (".venv", "agent", "libvcuda"):
        (clone / name).symlink_to(ROOT / name)
    environment = {"PORT": str(platform.port), "DEMO_DIR": str(platform.state), "PATH": os.environ["PATH"]}
    shell = Shell(clone, environment)
    steps = dict(STEP.findall((ROOT / "docs" / "tutorial.md").read_text()))
    try:
        yield {name: shell.run(text) for name, text in steps.items()}
    finally:
        shell.close()


def bodies(output: str) -> list[Any]:
    """Return every JSON object in the output, in order."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (start := output.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(output, start)
            found.append(value)
        except ValueError:
            at = start + 1
    return found


def series(output: str) -> dict[str, Any]:
    """Return the one series of the last /utilization/ answer."""
    (only,) = bodies(output)[-1]["series"]
    assert isinstance(only, dict)
    return only


def quotas(output: str) -> dict[str, int]:
    (page,) = [body for body in bodies(output) if "results" in body]
    return {quota["resource"]: quota["used"] for quota in page["results"]}


def test_the_newcomer_is_the_operator(outputs: dict[str, str]) -> None:
    assert bodies(outputs["begin"])[0]["operator"] is True


def test_a_tenant_is_given_its_quotas(outputs: dict[str, str]) -> None:
    tenant, core, memory = bodies(outputs["tenant"])
    assert tenant["slug"] == "skunkworks"
    assert (core["hard"], core["used"], memory["hard"]) == (100, 0, 16384)


def test_a_claim_is_active_and_charged_when_the_wait_answers(outputs: dict[str, str]) -> None:
    assert "active" in outputs["claim"]
    assert quotas(outputs["claim"]) == {"core_percent": 25, "memory_mib": 8192}


def test_the_program_gets_a_quarter_of_the_gpu(outputs: dict[str, str]) -> None:
    use = series(outputs["use"])
    assert use["core_percent"][-1] == pytest.approx(25, abs=3)
    assert use["core_limit_percent"][-1] == 25
    assert 4096 <= use["memory_mib"][-1] <= use["memory_limit_mib"][-1] == 8192
    assert use["age_seconds"] < 3


def test_a_raised_limit_is_followed_within_a_second(outputs: dict[str, str]) -> None:
    assert bodies(outputs["resize"])[0]["observed_generation"] == 2
    use = series(outputs["resize"])
    assert use["core_percent"][-1] == pytest.approx(75, abs=5)
    assert use["core_limit_percent"][-1] == 75


def test_a_lowered_memory_limit_refuses_the_next_allocation(outputs: dict[str, str]) -> None:
    assert "CUDA_ERROR_OUT_OF_MEMORY" not in outputs["program"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in outputs["shrink"]


def test_a_suspended_claim_has_no_part_of_the_gpu_and_of_the_quota(outputs: dict[str, str]) -> None:
    claim, *_, gpu = bodies(outputs["suspend"])
    assert (claim["state"], gpu["core_used"], gpu["memory_used_mib"]) == ("suspended", 0, 0), outputs["suspend"]
    assert claim["host_memory_mib"] >= 4096
    assert quotas(outputs["suspend"]) == {"core_percent": 0, "memory_mib": 0}


def test_the_same_process_goes_on_when_it_is_resumed(outputs: dict[str, str]) -> None:
    assert bodies(outputs["resume"])[0]["state"] == "active"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in outputs["resume"], "it still asks for more each second"


def test_release_frees_quota_and_gpu(outputs: dict[str, str]) -> None:
    assert bodies(outputs["release"])[0]["state"] == "released"
    assert quotas(outputs["release"]) == {"core_percent": 0, "memory_mib": 0}
    gpu = bodies(outputs["release"])[-1]
    assert (gpu["core_used"], gpu["memory_used_mib"]) == (0, 0)
