"""Each command that a claim's page prints runs as it stands."""

import html
import os
import re
import subprocess
import sys

import httpx
import pytest

from tests.cli.commands import Shell
from tests.platform import ROOT, Platform

# They need a container engine or systemd; tests/containers and tests/agent run them.
ELSEWHERE = "Containers and services"
PROGRAM = """
import os
assert "libvcuda" in os.environ["LD_PRELOAD"]
assert "GPUCLOUD_TOKEN" not in os.environ and "PYTHONPATH" not in os.environ
print("under the claim")
"""


def printed_lines(platform: Platform, uid: str) -> dict[str, list[str]]:
    """Return the commands of the claim's page by heading."""
    with httpx.Client(base_url=platform.url, follow_redirects=True) as client:
        form = client.get("/sign-in/").text
        (proof,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)[:1]
        password = (platform.state / "operator.password").read_text().strip()
        person = {"username": "operator", "password": password, "csrfmiddlewaretoken": proof}
        client.post("/sign-in/", data=person, headers={"Referer": platform.url}).raise_for_status()
        page = client.get(f"/claims/{uid}/").raise_for_status().text
    (section,) = re.findall(r'<section class="card snippets".*?</section>', page, re.DOTALL)
    groups = re.split(r'<h3 class="snippet-heading">(.*?)</h3>', section)[1:]
    return {
        heading: [html.unescape(line) for line in re.findall(r"<pre[^>]*><code>(.*?)</code>", group, re.DOTALL)]
        for heading, group in zip(groups[::2], groups[1::2], strict=True)
    }


@pytest.fixture
def run(max_: Shell) -> "Run":
    """Return a shell of somebody who has signed in with `gpucloud login`, on the claim's node."""
    programs = max_.home / "bin"
    programs.mkdir()
    start = f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT / 'cli')!r})\n"
    (programs / "gpucloud").write_text(f"{start}from gpucloud_cli.main import main\nsys.exit(main())\n")
    (programs / "gpucloud").chmod(0o755)
    (max_.home / "train.py").write_text(PROGRAM)
    token = max_.environment["GPUCLOUD_TOKEN"]
    signed_in = max_.run("login", max_.environment["GPUCLOUD_URL"], stdin=f"{token}\n", GPUCLOUD_TOKEN="")
    assert signed_in.code == 0, signed_in
    return Run(max_, f"{programs}:{os.environ['PATH']}", token)


class Run:
    """Runs a line in the person's home."""

    def __init__(self, shell: Shell, path: str, token: str) -> None:
        self._home, self._token = shell.home, token
        self._environment = {"HOME": str(shell.home), "PATH": path}

    def __call__(self, line: str, *, token: bool) -> str:
        """Run a line; it must succeed, and print no error."""
        environment = self._environment | ({"GPUCLOUD_TOKEN": self._token} if token else {})
        done = subprocess.run(
            ["bash", "-e", "-c", line], cwd=self._home, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert "/problems/" not in done.stdout, (line, done.stdout)
        return done.stdout


def test_every_printed_line_runs(max_: Shell, platform: Platform, run: Run) -> None:
    def core_limit() -> int:
        return int(max_.data("claim", "show", uid)["core_limit"])

    uid = max_.run("claim", "create", "--core", "10", "--memory", "1GiB", "--wait", "30s", "--uid").out.strip()
    lines = printed_lines(platform, uid)
    assert list(lines) == ["Commands", ELSEWHERE, "API"]
    program, resize, release, agent = lines["Commands"]
    assert [line.split(uid)[0] for line in (program, resize, release)] == [
        "gpucloud claim exec ",
        "gpucloud claim resize ",
        "gpucloud claim release ",
    ]
    assert "gpucloud-agent exec " in agent
    assert run(program, token=False) == run(agent, token=True) == "under the claim\n"
    run(resize, token=False)
    assert core_limit() == 20
    environment, patch, delete = lines["API"]
    # As its note says: the agent then needs no token.
    assert run(f"{environment}\nunset GPUCLOUD_TOKEN\n{agent.splitlines()[1]}", token=True) == "under the claim\n"
    max_.data("claim", "resize", uid, "--limit", "10", "--wait", "30s")
    run(patch, token=True)
    assert core_limit() == 20
    run(release, token=False)
    run(delete, token=True)
    assert max_.data("claim", "show", uid)["state"] in ("releasing", "released")


def test_a_claim_without_a_gpu_has_no_line_that_needs_one(max_: Shell, platform: Platform) -> None:
    uid = max_.run("claim", "create", "--core", "10", "--memory", "1GiB", "--start-at", "2h", "--uid").out.strip()
    lines = printed_lines(platform, uid)
    assert list(lines) == ["Commands", "API"]
    assert not [line for group in lines.values() for line in group if "exec" in line or "/env/" in line]
    assert max_.run("claim", "release", uid, "--wait", "30s").code == 0
