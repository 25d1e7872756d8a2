"""An installation by docker-compose.yml on this machine's container engine, as docs/compose.md describes it.

The engine is Docker, or the one at DOCKER_HOST: the socket of Podman uses the same protocol. Base images are taken by
their names from the engine; nothing is pulled.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from tests.platform import NOT_INHERITED, Platform, until

ROOT = Path(__file__).resolve().parent.parent.parent
# Two cores that build an image and start a platform in containers at once.
UP_SECONDS = 900
# Time of a restarted service on a busy machine.
BACK_SECONDS = 180.0


def base_images() -> set[str]:
    """Return the images that the Dockerfile and docker-compose.yml take from elsewhere."""
    named = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    return set(named) | {service["image"] for service in services if not service["image"].startswith("$")}


def docker(*arguments: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of the engine and return what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=1800, **more)
    assert not check or done.returncode == 0, f"docker {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def missing() -> str | None:
    """Return in words what this machine lacks for these tests; None if nothing."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    if docker("compose", "version", check=False).returncode != 0:
        return "docker has no compose"
    if docker("version", check=False).returncode != 0:
        return "no container engine answers"
    absent = [name for name in sorted(base_images()) if docker("image", "inspect", name, check=False).returncode != 0]
    return f"base images are missing: {', '.join(absent)}" if absent else None


class Installation(Platform):
    """A Compose project with its own name, port, secrets and volumes. `down()` leaves nothing of it."""

    def __init__(self, state: Path, *, source: Path = ROOT, image: str = "gpucloud-test") -> None:
        super().__init__(state)
        state.mkdir(exist_ok=True)
        self.source = source
        self.project = f"gpucloud-test-{self.port}"
        self.environment = {
            "COMPOSE_PROJECT_NAME": self.project,
            "GPUCLOUD_IMAGE": image,
            "PORT": str(self.port),
            "SECRETS_DIR": str(state / "secrets"),
            "COMPOSE_PROFILES": "demo",
        }

    @property
    def token(self) -> str:
        """Return the operator's token, from the volume that only the seed mounts."""
        if "token" not in self.__dict__:
            shown = self.compose("run", "--rm", "--no-deps", "-T", "seed", "cat", "/var/lib/gpucloud/operator.token")
            self.__dict__["token"] = shown.strip()
        return str(self.__dict__["token"])

    def compose(
        self, *arguments: str, given: str | IO[bytes] | None = None, more: Mapping[str, str] | None = None
    ) -> str:
        """Run a command of Compose and return its standard output.

        Raises AssertionError with its output.
        """
        options: dict[str, Any] = {"input": given} if isinstance(given, str) else {"stdin": given}
        environment = self.variables() | dict(more or {})
        done = docker("compose", *arguments, cwd=self.source, env=environment, check=False, **options)
        assert done.returncode == 0, (
            f"compose {arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}{self.last_lines()}"
        )
        return str(done.stdout)

    def variables(self) -> dict[str, str]:
        """Return the environment of Compose: the tests' own services must not reach the containers."""
        return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED} | self.environment

    def last_lines(self) -> str:
        """Return the last lines of every service, to be shown with a failure."""
        shown = docker("compose", "logs", "--tail", "15", cwd=self.source, env=self.variables(), check=False)
        return "\n".join(line[:300] for line in shown.stdout.splitlines())

    def make_secrets(self) -> None:
        """Create the secrets of an installation."""
        subprocess.run(
            ["sh", str(self.source / "deploy/docker/secrets.sh")],
            env=self.variables(),
            check=True,
            capture_output=True,
        )

    def up(self, *options: str) -> None:
        """Start everything, once: a second try would hide a failure of the first."""
        self.compose("up", "--detach", "--wait", "--wait-timeout", str(UP_SECONDS), *options)

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "5")
        # Compose removes the volumes that its file names now; an upgrade leaves those of the former file.
        whose = f"label=com.docker.compose.project={self.project}"
        if left := docker("volume", "ls", "--quiet", "--filter", whose).stdout.split():
            docker("volume", "rm", *left)

    def serves(self) -> bool:
        """True if database, broker and migrations are right, asked from outside the containers."""
        try:
            return self.call("GET", "readyz").status == 200 or self.call("GET", "nodes/").status == 200
        except OSError:
            return False

    def claim(self, tenant: str, **more: Any) -> Any:
        """Make a claim in the pool `default` and wait until it is in force."""
        made = self.granted("POST", "claims/", {"tenant": tenant, "core_request": 20, "memory_mib": 2048, **more})
        return self.in_force(made["uid"])

    def in_force(self, uid: str) -> Any:
        """Wait until the claim's newest generation is in force."""

        def settled() -> Any:
            found = self.granted("GET", f"claims/{uid}/")
            return found if found["state"] == "active" and found["observed_generation"] == found["generation"] else None

        return until(settled, seconds=BACK_SECONDS, what=f"claim {uid} to be in force")


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the lines of JSON in what a program printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
