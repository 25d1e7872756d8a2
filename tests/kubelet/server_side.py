"""The control plane of gpucloud for a real cluster: the platform, the watch, the extender, the webhooks, all processes.

The same commands as docs/kubernetes.md names, on the database of a platform that `deploy.demo` starts.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from apps.clusters.kube.client import Client, Refused
from deploy.demo.programs import Commands
from deploy.demo.state import State
from deploy.embedded import postgres, valkey
from tests.clusters.control_plane import ControlPlane
from tests.platform import NOT_INHERITED, ROOT, Platform, until
from tests.ports import free_port

# Names of the tenant's namespace, of the pool, and of the cluster.
NAMESPACE, POOL, CLUSTER, TENANT = "ml", "kube", "kube", "research"
START_SECONDS = 120.0
# A pod that the ledger refuses is evicted soon.
POD_CLAIM_SECONDS = "20"
# Variables that `Commands` sets for the platform.
INSTALLATION = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "ALLOWED_HOSTS")
HOOKS = "/apis/admissionregistration.k8s.io/v1"
Json = dict[str, Any]


class ServerSide:
    """The platform and the processes that serve one cluster, while the context is entered."""

    def __init__(self, directory: Path, plane: ControlPlane, **settings: str) -> None:
        """`settings`: further variables of the processes that serve the cluster."""
        self._settings = settings
        self._directory, self._plane = directory, plane
        self.platform = Platform(directory / "platform")
        self._extender_port, self._webhooks_port = free_port(), free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self.platform.start()
            self._connect()
            self._start("clusters")
            self._start("extender")
            until(self._extender_is_ready, seconds=START_SECONDS, what="the extender to know its cluster")
            self._start_webhooks()
            self._plane.start_scheduler(yaml.safe_load(self._print("scheduler_config", "--url", self._extender_url)))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            process = self._running.pop(name)
            process.kill()
            process.wait()
        self.platform.stop()

    def enrolment_token(self, node: str) -> str:
        """Create the node in the cluster's pool; return the token of its agent."""
        made = self.platform.granted("POST", "nodes/", {"name": node, "pool": POOL})
        return str(made["enrolment_token"])

    def claims(self) -> list[Json]:
        """Return the tenant's claims that are not released."""
        found = self.platform.granted("GET", f"claims/?tenant={TENANT}&limit=500")["results"]
        return [claim for claim in found if claim["state"] != "released"]

    def gpus(self) -> list[Json]:
        """Return the GPUs of the cluster's pool."""
        return list(self.platform.granted("GET", f"gpus/?pool={POOL}")["results"])

    def pods(self) -> list[Json]:
        """Return the cluster's pods as the ledger has them."""
        return list(self.platform.granted("GET", f"clusters/{CLUSTER}/pods/")["results"])

    def log_tail(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")[-4000:]

    @property
    def _extender_url(self) -> str:
        return f"http://127.0.0.1:{self._extender_port}"

    def _connect(self) -> None:
        client = self._plane.client()
        client.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        ask = self.platform.granted
        ask("POST", "pools/", {"name": POOL})
        self.platform.new_tenant(TENANT, core=1600, memory_mib=1 << 20)
        ask("POST", "clusters/", {"name": CLUSTER, "pool": POOL, "kubeconfig": self._plane.kubeconfig()})
        ask("POST", f"clusters/{CLUSTER}/namespaces/", {"namespace": NAMESPACE, "tenant": TENANT})

    def _extender_is_ready(self) -> bool:
        self._must_run("extender")
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self._extender_url}/healthz").status_code == 200
        return False

    def _start_webhooks(self) -> None:
        files, url = self._directory / "tls", f"https://127.0.0.1:{self._webhooks_port}"
        printed = self._print("webhook_certificates", "--directory", str(files), "--url", url, "--devices", CLUSTER)
        pair = ("--certificate", str(files / "tls.crt"), "--key", str(files / "tls.key"))
        self._start("webhooks", *pair, "--port", str(self._webhooks_port))
        client = self._plane.client()
        for configuration in yaml.safe_load_all(printed):
            client.post(f"{HOOKS}/{configuration['kind'].lower()}s", configuration)
        until(lambda: self._refuses(client), seconds=START_SECONDS, what="the API server to call the webhooks")

    def _refuses(self, client: Client) -> bool:
        """Return True once a pod that no GPU can carry is refused; nothing of it is left."""
        self._must_run("webhooks")
        container = {"name": "x", "image": "x", "resources": {"limits": {"tencent.com/vcuda-core": "150"}}}
        pod = {"metadata": {"name": "refused"}, "spec": {"containers": [container]}}
        try:
            client.post(f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
        except Refused as error:
            return "multiple of 100" in error.message
        return False

    def _must_run(self, name: str) -> None:
        assert self._running[name].poll() is None, f"{name} has ended\n{self.log_tail(name)}"

    def _environment(self) -> dict[str, str]:
        state = State.at(self.platform.state)
        commands = Commands(
            state,
            port=self.platform.port,
            database_url=postgres.url(state.root),
            redis_url=valkey.url(state.root),
        )
        made = os.environ | commands.control_plane
        # The prefix of hints and the size of the pool are the tests' own; a process with another prefix hears nothing.
        others = set(NOT_INHERITED) - set(INSTALLATION)
        mine = {name: value for name, value in made.items() if name not in others}
        own = {"EXTENDER_PORT": str(self._extender_port), "POD_CLAIM_SECONDS": POD_CLAIM_SECONDS, "LOG_LEVEL": "INFO"}
        return mine | own | self._settings

    def _print(self, *arguments: str) -> str:
        """Return what a command of the server prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=ROOT, env=self._environment(), capture_output=True,
            text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}: {done.stderr[-3000:]}"
        return done.stdout

    def _start(self, name: str, *arguments: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "manage.py", name, *arguments], cwd=ROOT, env=self._environment(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
