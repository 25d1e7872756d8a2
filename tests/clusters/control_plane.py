"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

The programs are in the directory that KUBEBUILDER_ASSETS names, as for other projects' tests. There is no kubelet:
nodes are objects that a test makes, and bound pods never run. Everything ends with the test, by the processes' own ids.
"""

import base64
import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from apps.clusters.kube.client import Client, Refused, Unreachable
from tests.clusters import authority
from tests.ports import free_port

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROLLERS = (
    "resourcequota-controller", "namespace-controller", "serviceaccount-controller", "garbage-collector-controller",
    "resourceclaim-controller",
)  # fmt: skip
START_SECONDS = 120.0
TOKEN = "only-on-loopback"


def missing() -> str | None:
    """Return why there can be no control plane; None if there can."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return "no control plane: KUBEBUILDER_ASSETS names no directory"
    absent = [name for name in PROGRAMS if not os.access(Path(assets) / name, os.X_OK)]
    return f"no control plane: {', '.join(absent)} not in {assets}" if absent else None


class ControlPlane:
    """A control plane that starts and ends with `with`."""

    def __init__(
        self,
        directory: Path,
        *,
        scheduler_config: Mapping[str, Any] | None = None,
        controllers: Sequence[str] = (),
        admission: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare it, with these controllers beside those that every test needs.

        `admission`: configurations of admission plugins, by their names.
        """
        self.directory, self._controllers, self._admission = directory, controllers, admission or {}
        self.port, self._etcd_ports = free_port(), (free_port(), free_port())
        self._scheduler_config = scheduler_config
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.directory / "accounts.key").write_bytes(key.private_bytes(*form))
        with (self.directory / "tokens.csv").open("w") as file:
            csv.writer(file).writerow([TOKEN, "admin", "admin", "system:masters"])
        try:
            self.start_etcd()
            self.start_api_server()
            self.start_controllers()
            if self._scheduler_config is not None:
                self.start_scheduler(self._scheduler_config)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd_ports)
        self._start(
            "etcd", f"--data-dir={self.directory}/etcd", f"--listen-client-urls={client}", "--logger=zap",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", "--unsafe-no-fsync",
        )  # fmt: skip

    def start_api_server(self) -> None:
        keys, admission = self.directory / "accounts.key", self.directory / "admission.yaml"
        plugins = [{"name": name, "configuration": how} for name, how in self._admission.items()]
        kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration"}
        admission.write_text(yaml.safe_dump({**kind, "plugins": plugins}))
        self._start(
            "kube-apiserver", f"--admission-control-config-file={admission}",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_ports[0]}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--cert-dir={self.directory}/certificates",
            f"--service-account-key-file={keys}", f"--service-account-signing-key-file={keys}",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
            f"--token-auth-file={self.directory}/tokens.csv", "--authorization-mode=RBAC",
            f"--client-ca-file={authority.make(self.directory / 'clients')}/ca.crt",
            # No pod needs a token, and nothing reports a node as ready.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", "--enable-priority-and-fairness=false",
        )  # fmt: skip
        self._wait_for_api()

    def start_controllers(self) -> None:
        keys = self.directory / "accounts.key"
        self._start(
            "kube-controller-manager", f"--kubeconfig={self._kubeconfig_file()}", "--leader-elect=false",
            "--secure-port=0", f"--service-account-private-key-file={keys}",
            f"--controllers={','.join((*CONTROLLERS, *self._controllers))}", "--resource-quota-sync-period=2s",
        )  # fmt: skip

    def start_scheduler(self, config: Mapping[str, Any]) -> None:
        """Start a scheduler with this KubeSchedulerConfiguration, completed by the API server's address."""
        whole = {
            **config,
            "clientConnection": {
                **config.get("clientConnection", {}),
                "kubeconfig": str(self._kubeconfig_file()),
            },
            "leaderElection": {"leaderElect": False},
            # A pod is retried soon.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        file = self.directory / "scheduler.yaml"
        file.write_text(yaml.safe_dump(whole))
        self._start("kube-scheduler", f"--config={file}", "--secure-port=0")

    def kubeconfig(self) -> str:
        """Return an administrator's kubeconfig."""
        authority = base64.b64encode((self.directory / "certificates" / "apiserver.crt").read_bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": {"token": TOKEN}}],
            }
        )

    def kubeconfig_by_certificate(self, user: str, *groups: str) -> str:
        """Return a kubeconfig of this user in these groups."""
        whole = yaml.safe_load(self.kubeconfig())
        names = ("client-certificate-data", "client-key-data")
        files = authority.client(self.directory / "clients", user, *groups)
        whole["users"][0]["user"] = {
            name: base64.b64encode(file.read_bytes()).decode() for name, file in zip(names, files, strict=True)
        }
        return str(yaml.safe_dump(whole))

    def client(self) -> Client:
        """Return an administrator's client."""
        return Client(yaml.safe_load(self.kubeconfig()))

    def stop_one(self, name: str) -> None:
        """Stop one program, as if its machine had failed."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop everything, the last one first."""
        for name in reversed(list(self._running)):
            self.stop_one(name)

    def log_tail(self, name: str) -> str:
        """Return the end of a program's log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]

    def _kubeconfig_file(self) -> Path:
        file = self.directory / "admin.kubeconfig"
        file.write_text(self.kubeconfig())
        return file

    def _start(self, name: str, *arguments: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(Path(os.environ["KUBEBUILDER_ASSETS"]) / name), *arguments],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory,
            )  # fmt: skip

    def _wait_for_api(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                # A hook makes it after the start, and every other namespace depends on it.
                self.client().get("/api/v1/namespaces/default")
                if self._heeds_its_own_roles():
                    return
            except (Refused, Unreachable, OSError) as error:
                if self._running["kube-apiserver"].poll() is not None or time.monotonic() > until:
                    raise AssertionError(
                        f"kube-apiserver does not start: {error}\n{self.log_tail('kube-apiserver')}"
                    ) from None
            time.sleep(0.2)

    def _heeds_its_own_roles(self) -> bool:
        """Return True once everybody may ask for the version: a hook creates the roles, the authorizer learns them."""
        asked = {"user": "nobody", "groups": ["system:authenticated"]}
        spec = {**asked, "nonResourceAttributes": {"path": "/version", "verb": "get"}}
        said = self.client().post("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
        return bool(json.loads(said)["status"]["allowed"])
