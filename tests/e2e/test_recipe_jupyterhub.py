"""The JupyterHub recipe: a real hub starts a user's server under a claim, and the claim ends with the server."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import live_claims
from tests.platform import ROOT, Platform, until
from tests.ports import free_port

RECIPES = (ROOT / "docs" / "recipes.md").read_text()
(CONFIGURATION,) = re.findall(r"<!-- recipe: jupyterhub -->\n```python\n(.*?)```", RECIPES, re.DOTALL)
TOKEN = "0123456789abcdef" * 2
# A hub for tests: anybody signs in, and servers run as the hub's own user.
TRIAL = f"""
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Spawner.args = ["--allow-root"]
c.JupyterHub.bind_url = "http://127.0.0.1:PORT_0"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:PORT_1"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:PORT_2"
c.JupyterHub.services = [{{"name": "test", "api_token": "{TOKEN}"}}]
c.JupyterHub.load_roles = [{{"name": "test", "scopes": ["admin:users", "admin:servers", "groups", "admin:groups",
    "access:servers"], "services": ["test"]}}]
"""
MISSING = [name for name in ("jupyterhub", "configurable-http-proxy") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.serial,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not on the PATH: {', '.join(MISSING)}"),
]


class Hub:
    """A running hub."""

    def __init__(self, directory: Path, platform: Platform, tenant: str) -> None:
        self.ports = [free_port() for _ in range(3)]
        tokens = directory / "tokens"
        tokens.mkdir()
        text = platform.granted("POST", "tokens/", {"name": "hub", "tenant": tenant, "role": "member"})["token"]
        (tokens / tenant).write_text(text)
        (tokens / tenant).chmod(0o600)
        configuration = CONFIGURATION.replace("/etc/gpucloud/tokens", str(tokens))
        configuration = configuration.replace("https://gpucloud.example.org", platform.url)
        # The demo's nodes do not have the name of this machine.
        configuration = configuration.replace("socket.gethostname()", '"sim-1"') + TRIAL
        for number, port in enumerate(self.ports):
            configuration = configuration.replace(f"PORT_{number}", str(port))
        (directory / "jupyterhub_config.py").write_text(configuration)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        # `gpucloud` is this checkout's.
        environment = {"PATH": path, "HOME": str(directory), "PYTHONPATH": str(ROOT / "cli")}
        self.log = directory / "hub.log"
        hub = shutil.which("jupyterhub")
        assert hub is not None
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [hub, "-f", "jupyterhub_config.py"], cwd=directory, env=environment, stdout=log, stderr=log
            )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[0]}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            raw = answer.read()
        return json.loads(raw) if raw else None

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.ports[0])) == 0 and "JupyterHub is now" in self.log.read_text()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def tenant(platform: Platform) -> str:
    return platform.new_tenant(f"hub-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def hub(tmp_path: Path, platform: Platform, tenant: str) -> Iterator[Hub]:
    running = Hub(tmp_path, platform, tenant)
    try:
        until(running.is_up, seconds=120, what="the hub to be up")
        yield running
    finally:
        running.stop()


def test_a_users_server_runs_under_a_claim_of_the_chosen_size(hub: Hub, platform: Platform, tenant: str) -> None:
    hub.call("POST", "hub/api/users/ada", {})
    hub.call("POST", f"hub/api/groups/{tenant}", {})
    hub.call("POST", f"hub/api/groups/{tenant}/users", {"users": ["ada"]})
    hub.call("POST", "hub/api/users/ada/server", {"size": "large"})
    until(
        lambda: hub.call("GET", "hub/api/users/ada")["servers"].get("", {}).get("ready"),
        seconds=120,
        what="the server to be ready",
    )
    (claim,) = live_claims(platform, tenant)
    assert (claim["name"], claim["core_request"], claim["memory_mib"]) == ("notebook of ada", 50, 16384)
    assert {item["node"] for item in claim["assignments"]} == {"sim-1"}
    kernel = hub.call("POST", "user/ada/api/kernels", {})
    environment = until(lambda: environment_of_kernel(kernel["id"]), seconds=60, what="the kernel to run")
    assert environment["GPUCLOUD_CLAIM"] == claim["uid"]
    assert "libvcuda" in environment["LD_PRELOAD"]
    assert not {"GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE"} & environment.keys()
    hub.call("DELETE", "hub/api/users/ada/server")
    until(lambda: not live_claims(platform, tenant), seconds=60, what="the claim to be released")


def environment_of_kernel(uid: str) -> dict[str, str] | None:
    """Return the environment of the kernel's process."""
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and uid.encode() in (process / "cmdline").read_bytes():
                pairs = (process / "environ").read_text().split("\0")
                return dict(pair.partition("=")[::2] for pair in pairs if pair)
        except OSError:
            continue
    return None
