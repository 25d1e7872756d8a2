"""The recipes of docs/ci.md, run by tools that read such files: `act` for GitHub, `gitlab-ci-local` for GitLab."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import live_claims, new_name
from tests.platform import ROOT, Json, Platform, until

CI = (ROOT / "docs" / "ci.md").read_text()
RECIPES = dict(re.findall(r"<!-- recipe: (\S+) -->\n```\w+\n(.*?)```", CI, re.DOTALL))
GPU_TEST = """
import os, pathlib, time
def test_it():
    assert "libvcuda" in os.environ["LD_PRELOAD"] and "GPUCLOUD_TOKEN" not in os.environ
    pathlib.Path(MARK).touch()
    time.sleep(SECONDS)
    assert PASSES
"""
TRAIN = """
import os, sys
print("fold", sys.argv[2], "of", os.environ["GPUCLOUD_ARRAY_SIZE"])
sys.exit(sys.argv[2] == "3" and not PASSES)
"""
# A program that a cancelled workflow still has after so long is killed by GitHub's runner without more signals.
GITHUB_GRACE_SECONDS = 10

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]
with_act = pytest.mark.skipif(shutil.which("act") is None, reason="not on the PATH: act")
with_gitlab = pytest.mark.skipif(
    None in map(shutil.which, ("gitlab-ci-local", "rsync")), reason="not on the PATH: gitlab-ci-local, rsync"
)
with_jobs = pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs")


class Project:
    """A repository with a pipeline, and the environment of its runner."""

    def __init__(self, directory: Path, platform: Platform, tenant: str) -> None:
        self.checkout, self.mark = directory / "checkout", directory / "started"
        self.artifacts = directory / "artifacts"
        token = platform.granted("POST", "tokens/", {"name": "ci", "tenant": tenant, "role": "member"})["token"]
        (directory / "token").write_text(token)
        programs = directory / "bin"
        for folder in (self.checkout / "tests" / "gpu", self.artifacts, programs):
            folder.mkdir(parents=True)
        for name, line in {"gpucloud": f"{sys.executable} -m gpucloud_cli", "python": sys.executable}.items():
            (programs / name).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "cli"} exec {line} "$@"\n')
            (programs / name).chmod(0o755)
        self.programs = programs
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(directory),
            "GPUCLOUD_URL": platform.url,
            "GPUCLOUD_TOKEN_FILE": str(directory / "token"),
        }
        self.runner = self.environment | {"CI_JOB_ID": "7", "CI_PROJECT_PATH": "acme/vision", "JOB": "ci-7-1"}
        self.runner |= {"GITHUB_REPOSITORY": "acme/vision", "GITHUB_RUN_ID": "7"}

    def commit(self, files: dict[str, str], *, passes: bool, seconds: int = 0) -> None:
        """Commit the pipeline, a test and a training program that end as told."""
        values = f"PASSES, SECONDS, MARK = {passes}, {seconds}, {str(self.mark)!r}\n"
        # What runs as a job has the PATH of a node; the recipes call `python`.
        contents = files | {"tests/gpu/test_it.py": values + GPU_TEST, "train.py": values + TRAIN}
        for name, text in contents.items():
            file = self.checkout / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace(" 'python ", f" '{self.programs}/python "))
        git = ["git", "-c", "user.name=ci", "-c", "user.email=ci@example.org"]
        for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "A pipeline"]):
            subprocess.run([*git, *words], cwd=self.checkout, env=self.environment, check=True)
        origin = ["git", "remote", "add", "origin", "https://git.example.org/acme/vision.git"]
        subprocess.run(origin, cwd=self.checkout, check=True)

    def run(self, *line: str) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; its messages are part of its output."""
        return subprocess.run(
            line, cwd=self.checkout, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=240,
        )  # fmt: skip

    def start_step(self, script: str) -> subprocess.Popen[bytes]:
        """Start a step as the runners do: a shell that reads a file, in a process group of its own."""
        (self.checkout / "step.sh").write_text(script)
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
        log = (self.artifacts / "step.log").open("wb")
        with log:
            return subprocess.Popen(
                line, cwd=self.checkout, env=self.runner, stdout=log, stderr=log, start_new_session=True
            )


@pytest.fixture
def tenant(platform: Platform) -> str:
    platform.granted("PATCH", "pools/default/", {"jobs": True})
    return platform.new_tenant(new_name("ci"))


@pytest.fixture
def project(tmp_path: Path, platform: Platform, tenant: str) -> Iterator[Project]:
    made = Project(tmp_path, platform, tenant)
    yield made
    for claim in live_claims(platform, tenant):
        platform.call("POST", f"claims/{claim['uid']}/release/", {})


def act(project: Project, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the workflow on this machine, as its variables and secrets say."""
    here = [f"--platform={label}=-self-hosted" for label in ("self-hosted", "ubuntu-latest")]
    return project.run(
        "act", "push", *here, f"--var=GPUCLOUD_URL={project.environment['GPUCLOUD_URL']}",
        f"--secret=GPUCLOUD_TOKEN={(tmp_path / 'token').read_text()}",
    )  # fmt: skip


def workflow(name: str, artifacts: Path) -> str:
    """Return a recipe; the action that uploads, which only GitHub has, becomes a copy."""
    read: dict[Any, Any] = yaml.safe_load(RECIPES[name])
    steps = read["jobs"]["test"]["steps"]
    if "upload-artifact" in steps[-1].get("uses", ""):
        file = steps[-1]["with"]["path"]
        steps[-1] = {"if": steps[-1]["if"], "run": f"cp {file} {artifacts}/"}
    # YAML's key `on` is a boolean to PyYAML.
    return yaml.safe_dump({"on" if key is True else key: value for key, value in read.items()}, width=1000)


def jobs_of(platform: Platform, tenant: str) -> list[Json]:
    return list(platform.granted("GET", f"jobs/?tenant={tenant}")["results"])


@with_act
@pytest.mark.parametrize("name", ["github", "github-steps"])
def test_a_workflow_on_a_gpu_runner_has_a_claim(
    project: Project, platform: Platform, tenant: str, tmp_path: Path, name: str
) -> None:
    project.commit({".github/workflows/gpu.yml": workflow(name, project.artifacts)}, passes=name == "github")
    done = act(project, tmp_path)
    word = "1 passed" if name == "github" else "1 failed"
    assert (done.returncode, word in done.stdout) == (int(name != "github"), True), done.stdout
    assert live_claims(platform, tenant) == []
    (claim,) = platform.granted("GET", f"claims/?tenant={tenant}")["results"]
    assert (claim["state"], claim["core_request"], claim["memory_mib"]) == ("released", 30, 8192)


@with_gitlab
def test_a_pipeline_on_a_gpu_runner_has_a_claim(project: Project, platform: Platform, tenant: str) -> None:
    project.commit({".gitlab-ci.yml": RECIPES["gitlab"]}, passes=True)
    done = project.run("gitlab-ci-local", "gpu-tests")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout
    assert live_claims(platform, tenant) == []


@with_act
@with_jobs
@pytest.mark.parametrize("passes", [True, False])
def test_a_workflow_without_a_gpu_runner_runs_a_job(
    project: Project, platform: Platform, tenant: str, tmp_path: Path, *, passes: bool
) -> None:
    project.commit({".github/workflows/gpu.yml": workflow("github-job", project.artifacts)}, passes=passes)
    done = act(project, tmp_path)
    assert done.returncode == (0 if passes else 1), done.stdout
    assert f"1 {'passed' if passes else 'failed'}" in done.stdout
    report = (project.artifacts / "report.xml").read_text()
    assert f'failures="{int(not passes)}"' in report, done.stdout
    (job,) = jobs_of(platform, tenant)
    assert (job["state"], job["exit_code"]) == (("succeeded", 0) if passes else ("failed", 1))


@with_gitlab
@with_jobs
@pytest.mark.parametrize("passes", [True, False])
def test_a_pipeline_without_a_gpu_runner_runs_a_job(
    project: Project, platform: Platform, tenant: str, *, passes: bool
) -> None:
    project.commit({".gitlab-ci.yml": RECIPES["gitlab-job"]}, passes=passes)
    done = project.run("gitlab-ci-local", "gpu-job")
    assert done.returncode == (0 if passes else 1), done.stdout
    report = (project.checkout / "report.xml").read_text()
    assert f'failures="{int(not passes)}"' in report, done.stdout
    (job,) = jobs_of(platform, tenant)
    assert (job["state"], job["exit_code"]) == (("succeeded", 0) if passes else ("failed", 1))


@with_gitlab
@with_jobs
def test_an_array_of_a_pipeline_fails_if_one_of_it_does(project: Project, platform: Platform, tenant: str) -> None:
    project.commit({".gitlab-ci.yml": RECIPES["gitlab-array"]}, passes=False)
    done = project.run("gitlab-ci-local", "sweep")
    assert done.returncode == 1, done.stdout
    assert all(f"fold {number} of 4" in done.stdout for number in range(4)), done.stdout
    assert sorted(job["state"] for job in jobs_of(platform, tenant)) == ["failed"] + ["succeeded"] * 3


def step_of(name: str) -> str:
    """Return the command of a recipe that uses the GPU."""
    recipe: dict[str, Any] = yaml.safe_load(RECIPES[name])
    if "jobs" in recipe:
        return str(recipe["jobs"]["test"]["steps"][1]["run"])
    ((found,),) = (part["script"] for part in recipe.values())
    return str(found)


CANCELLED = ["github", "gitlab", *(pytest.param(name, marks=with_jobs) for name in ("github-job", "gitlab-job"))]


@pytest.mark.parametrize("name", CANCELLED)
def test_a_cancelled_step_leaves_nothing_behind(project: Project, platform: Platform, tenant: str, name: str) -> None:
    """GitHub's runner interrupts the shell alone, GitLab's ends its process group."""
    project.commit({}, passes=True, seconds=120)
    step = project.start_step(step_of(name).replace(" 'python ", f" '{project.programs}/python "))
    until(project.mark.exists, seconds=90, what="the test to run")
    begun = time.monotonic()
    if name.startswith("github"):
        os.kill(step.pid, signal.SIGINT)
    else:
        os.killpg(step.pid, signal.SIGTERM)
    assert step.wait(60) != 0
    assert time.monotonic() - begun < GITHUB_GRACE_SECONDS
    until(lambda: not live_claims(platform, tenant), seconds=30, what="the claim to be released")


def test_without_exec_a_cancelled_workflow_leaves_its_claim(project: Project, platform: Platform, tenant: str) -> None:
    """Control: why the recipe says `exec`."""
    project.commit({}, passes=True, seconds=120)
    step = project.start_step(step_of("github").replace("exec ", ""))
    try:
        until(project.mark.exists, seconds=90, what="the test to run")
        os.kill(step.pid, signal.SIGINT)
        time.sleep(5)
        assert step.poll() is None
        assert [claim["state"] for claim in live_claims(platform, tenant)] == ["active"]
    finally:
        os.killpg(step.pid, signal.SIGKILL)
        step.wait()
