"""docs/cli-reference.md matches the commands; docs/ci.md's recipes are valid and do what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucloud_cli import reference
from tests.cli.commands import Ended, Shell, live_claims
from tests.platform import ROOT, Platform

CI = (ROOT / "docs" / "ci.md").read_text()
RECIPES = dict(re.findall(r"<!-- recipe: (\S+) -->\n```\w+\n(.*?)```", CI, re.DOTALL))
SCHEMAS = {
    "github": "vendor.github-workflows",
    "github-job": "vendor.github-workflows",
    "github-steps": "vendor.github-workflows",
    "gitlab": "vendor.gitlab-ci",
    "gitlab-array": "vendor.gitlab-ci",
    "gitlab-job": "vendor.gitlab-ci",
    "gitlab-quotas": "vendor.gitlab-ci",
}
# Checks of a pipeline's own tests: they run under the claim, with none of its secrets.
GPU_TEST = """
import os
def test_it():
    assert "libvcuda" in os.environ["LD_PRELOAD"]
    assert "GPUCLOUD_TOKEN" not in os.environ and "GPUCLOUD_TOKEN_FILE" not in os.environ
    assert os.environ["WANTED"] == "good"
"""


def test_the_reference_is_what_the_commands_say() -> None:
    """Regenerate it with `.venv/bin/python -m gpucloud_cli.reference docs/cli-reference.md`."""
    assert (ROOT / "docs" / "cli-reference.md").read_text() == reference.render()


def test_the_documents_declaration_is_a_valid_one(tmp_path: Path) -> None:
    from gpucloud_cli.declared import documents

    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "cli.md").read_text(), re.DOTALL)
    (tmp_path / "platform.yaml").write_text(text)
    declared = documents.read([str(tmp_path)])
    assert sorted(str(who) for who in declared.items) == [
        "limit-range/acme/*/memory_mib",
        "member-limit/acme/anna/core_percent",
        "member/acme/anna",
        "organisation-quota/physics/*/core_percent",
        "organisation/physics",
        "pool/default",
        "quota/acme/*/core_percent",
        "quota/acme/*/vgpus",
        "quota/acme/default/memory_mib",
        "tenant/acme",
    ]


@pytest.mark.parametrize(("name", "schema"), SCHEMAS.items())
def test_the_recipes_are_valid(name: str, schema: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPES[name])
    check = Path(sys.executable).parent / "check-jsonschema"
    done = subprocess.run(
        [check, "--builtin-schema", schema, file], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_recipe_for_each_system() -> None:
    assert set(RECIPES) == {*SCHEMAS, "jenkins"}


class Runner:
    """A small CI runner: a checkout, its variables, `gpucloud` on the PATH."""

    def __init__(self, shell: Shell, *, wanted: str) -> None:
        self.checkout = shell.home / "checkout"
        (self.checkout / "tests" / "gpu").mkdir(parents=True)
        (self.checkout / "tests" / "gpu" / "test_it.py").write_text(GPU_TEST)
        programs = shell.home / "bin"
        programs.mkdir()
        for name, line in {"gpucloud": shell.line(), "python": [sys.executable]}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {" ".join(line)} "$@"\n')
            (programs / name).chmod(0o755)
        self.outputs = shell.home / "outputs"
        self.outputs.touch()
        self.environment = shell.environment | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "WANTED": wanted,
            "GITHUB_REPOSITORY": "acme/vision",
            "GITHUB_RUN_ID": "7",
            "GITHUB_OUTPUT": str(self.outputs),
            "CI_PROJECT_PATH": "acme/vision",
            "CI_JOB_ID": "7",
            "JOB_NAME": "vision",
            "BUILD_NUMBER": "7",
        }

    def run(self, script: str) -> Ended:
        """Run one step, as GitHub, GitLab and Jenkins run it."""
        uid = self.outputs.read_text().strip().removeprefix("uid=")
        text = script.replace("${{ steps.claim.outputs.uid }}", uid)
        assert "${{" not in text
        line = ["bash", "-e", "-o", "pipefail", "-c", text]
        done = subprocess.run(
            line, cwd=self.checkout, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return Ended(done.returncode, done.stdout, done.stderr)


def step(name: str) -> str:
    """Return the one command of a recipe that runs the tests."""
    if name == "jenkins":
        (found,) = re.findall(r"sh '''\n(.*?)'''", RECIPES[name], re.DOTALL)
        return str(found)
    recipe: dict[str, Any] = yaml.safe_load(RECIPES[name])
    if name == "gitlab":
        (found,) = recipe["gpu-tests"]["script"]
        return str(found)
    return str(recipe["jobs"]["test"]["steps"][-1]["run"])


@pytest.mark.serial
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gitlab", "bad"),
        pytest.param("github", "good", marks=pytest.mark.long),
        pytest.param("jenkins", "good", marks=pytest.mark.long),
    ],
)
def test_a_recipe_runs_its_tests_and_releases(
    max_: Shell, tenant: str, platform: Platform, name: str, wanted: str
) -> None:
    ended = Runner(max_, wanted=wanted).run(step(name))
    good = wanted == "good"
    assert (ended.code, "1 passed" in ended.out) == (0 if good else 1, good), ended
    assert live_claims(platform, tenant) == []
    (claim,) = platform.granted("GET", f"claims/?tenant={tenant}")["results"]
    assert claim["name"] in {"acme/vision 7", "vision 7"}


@pytest.mark.serial
@pytest.mark.timeout(180)
def test_a_claim_around_several_steps_is_released_though_one_fails(
    max_: Shell, tenant: str, platform: Platform
) -> None:
    runner = Runner(max_, wanted="bad")
    _, claim, wait, test, release = yaml.safe_load(RECIPES["github-steps"])["jobs"]["test"]["steps"]
    assert runner.run(claim["run"]).code == 0
    assert runner.run(wait["run"]).code == 0
    assert runner.run(test["run"]).code == 1
    assert [row["state"] for row in live_claims(platform, tenant)] == ["active"]
    assert "always()" in release["if"]
    assert runner.run(release["run"]).code == 0
    assert live_claims(platform, tenant) == []
