"""A real node on this machine: containerd, runc, and a kubelet, in a mount namespace of their own.

The kubelet's directory of device plugins is a constant (`/var/lib/kubelet/device-plugins`), and so is the directory of
containerd's shims (`/run/containerd`): in the namespace, directories of the test are mounted there, so a kubelet or a
containerd of this machine is not disturbed. From outside, the same files are below `directory`. Pods are in the
machine's network: there is no CNI plugin. Everything ends with the test, by the processes' own ids.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml

from apps.clusters.kube.client import Refused
from tests.clusters.control_plane import ControlPlane
from tests.kubelet import image, programs
from tests.kubelet.groups import NodeGroup
from tests.platform import until
from tests.ports import free_port
from tests.processes import alive

# Paths that programs have compiled in; made where this machine has none. They stay: to remove a directory takes away
# what another run has mounted there in its own namespace.
KUBELET_DIRECTORY, SHIMS_DIRECTORY = Path("/var/lib/kubelet"), Path("/run/containerd")
START_SECONDS = 120.0
# No CNI plugin is ever called: every pod is in the machine's network. The kubelet wants a configuration all the same.
NO_NETWORK = '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}\n'
Json = dict[str, Any]


class RealNode:
    """A node of a control plane that starts and ends with `with`."""

    def __init__(self, directory: Path, plane: ControlPlane, name: str) -> None:
        self.directory, self.name = directory, name
        self._plane = plane
        self.group = NodeGroup(f"gpucloud-test-{uuid.uuid4().hex[:8]}")
        self.cdi_directory = directory / "cdi"
        self._containerd: subprocess.Popen[bytes] | None = None
        self._kubelet: subprocess.Popen[bytes] | None = None

    @property
    def plugins_directory(self) -> Path:
        """The directory of device plugins, as it is seen from outside of the namespace."""
        return self.directory / "kubelet" / "device-plugins"

    def __enter__(self) -> Self:
        for name in ("kubelet/device-plugins", "shims", "cdi", "cni", "logs", "containerd"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "cni" / "10-none.conflist").write_text(NO_NETWORK)
        try:
            self._make_mount_points()
            self.group.make()
            self._start_containerd()
            self._import_image()
            self.start_kubelet()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_kubelet(self) -> None:
        """Start the kubelet and wait until its node is ready."""
        config = self.directory / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._kubelet_configuration()))
        kubeconfig = self.directory / "kubeconfig"
        kubeconfig.write_text(self._plane.kubeconfig())
        begun = time.time()
        self._kubelet = self._start(
            "kubelet", *self._inside(), str(programs.kubelet()),
            f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}", "--v=2",
            "--node-labels=nvidia-device-enable=enable",
        )  # fmt: skip
        until(lambda: self._ready_since(begun), seconds=START_SECONDS, what=f"the node to be ready\n{self.log_tail()}")

    def kill_kubelet(self) -> None:
        """Kill the kubelet; containers continue."""
        assert self._kubelet is not None
        self._kubelet.kill()
        self._kubelet.wait()
        self._kubelet = None

    def stop(self) -> None:
        """End the kubelet, every container, containerd and its shims."""
        if self._kubelet is not None:
            self.kill_kubelet()
        namespace = self._namespace()
        if self._containerd is not None:
            self._containerd.kill()
            self._containerd.wait()
        self.group.end()
        for pid in _processes_in(namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def capacity(self, which: str = "allocatable") -> dict[str, str]:
        """Return the node's resources, as the API server has them."""
        found: dict[str, str] = self._plane.client().get(f"/api/v1/nodes/{self.name}")["status"].get(which, {})
        return found

    def execute(self, container_id: str, *command: str) -> str:
        """Return the output of a command in a running container. Raises AssertionError with its errors."""
        identity = container_id.removeprefix("containerd://")
        exec_id = f"t-{uuid.uuid4().hex[:8]}"
        return self._ctr("tasks", "exec", "--exec-id", exec_id, identity, *command)

    def kill(self, container_id: str) -> None:
        """Kill the first process of a running container."""
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container_id.removeprefix("containerd://"))

    def log(self, pod: Json, container: str) -> str:
        """Return what all runs of a container wrote, without the kubelet's time stamps."""
        meta = pod["metadata"]
        directory = self.directory / "logs" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        lines = [line for file in sorted(directory.glob("*.log")) for line in file.read_text().splitlines()]
        return "\n".join(line.split(" ", 3)[3] for line in lines)

    def log_tail(self, name: str = "kubelet") -> str:
        """Return the end of a program's log."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else f"{name} has not started"

    def _ready_since(self, begun: float) -> bool:
        assert self._kubelet is not None
        assert self._kubelet.poll() is None, f"the kubelet has ended\n{self.log_tail()}"
        return _is_ready(self._plane, self.name, begun)

    def _start_containerd(self) -> None:
        config = self.directory / "containerd.toml"
        config.write_text(self._containerd_configuration())
        mounts = {
            self.directory / "kubelet": KUBELET_DIRECTORY,
            self.directory / "shims": SHIMS_DIRECTORY,
        }
        lines = [f"mount --bind '{source}' '{target}'" for source, target in mounts.items()]
        script = " && ".join([*lines, f"exec '{programs.required('containerd')}' --config '{config}'"])
        self._containerd = self._start("containerd", "unshare", "--mount", "sh", "-c", script)

        def answers() -> bool:
            assert self._containerd is not None
            assert self._containerd.poll() is None, f"containerd has ended\n{self.log_tail('containerd')}"
            return self._socket.exists() and _accepts(self._socket)

        until(answers, seconds=START_SECONDS, what="containerd to answer")

    @property
    def _socket(self) -> Path:
        # Outside of the directory of a test, whose path may be too long for a socket.
        return self.directory / "c.sock"

    def _containerd_configuration(self) -> str:
        here = self.directory
        return f"""
version = 3
root = "{here}/containerd/root"
state = "{here}/containerd/state"
[grpc]
  address = "{self._socket}"
[ttrpc]
  address = "{here}/t.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{_snapshotter(here)}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{image.NAME}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{self.cdi_directory}"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{programs.required("runc")}"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{here}/cni"]
    conf_dir = "{here}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{here}/containerd/opt"
"""

    def _kubelet_configuration(self) -> Json:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group.name}",
            # The machine may still have it; the kubelet refuses it by itself since 1.35.
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "enforceNodeAllocatable": ["pods"],
            "localStorageCapacityIsolation": False,
            # The machine's disk may be as full as it likes.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.directory / "logs"),
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "1s",
            # Claims that could not be prepared are tried again after this time, by default one to 1.5 minutes.
            "syncFrequency": "3s",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
            "shutdownGracePeriod": "0s",
        }

    def _import_image(self) -> None:
        archive = self.directory / "image.tar"
        image.write(archive)
        self._ctr("images", "import", "--local", "--snapshotter", _snapshotter(self.directory), str(archive))

    def _ctr(self, *arguments: str) -> str:
        command = [programs.required("ctr"), "--address", str(self._socket), "--namespace", "k8s.io", *arguments]
        done = subprocess.run([*self._inside(), *command], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"ctr {arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    def _inside(self) -> list[str]:
        """Return the command that starts another in the node's mount namespace."""
        assert self._containerd is not None
        return ["nsenter", f"--target={self._containerd.pid}", "--mount", "--"]

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        paths = {str(Path(programs.required(one)).parent) for one in programs.RUNTIME}
        environment = os.environ | {"PATH": ":".join([*sorted(paths), os.environ["PATH"]])}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.directory, env=environment
            )

    def _make_mount_points(self) -> None:
        for path in (KUBELET_DIRECTORY, SHIMS_DIRECTORY):
            path.mkdir(exist_ok=True)

    def _namespace(self) -> str | None:
        """Return the mount namespace of containerd; None if it has none of its own."""
        if self._containerd is None or not alive(self._containerd.pid):
            return None
        own = str(Path("/proc/self/ns/mnt").readlink())
        found = str(Path(f"/proc/{self._containerd.pid}/ns/mnt").readlink())
        return found if found != own else None


def _processes_in(namespace: str | None) -> list[int]:
    """Return the processes in this mount namespace: the shims, which outlive containerd."""
    found = []
    for path in Path("/proc").glob("[0-9]*") if namespace is not None else ():
        with contextlib.suppress(OSError):
            if str((path / "ns" / "mnt").readlink()) == namespace:
                found.append(int(path.name))
    return found


def _is_ready(plane: ControlPlane, name: str, since: float) -> bool:
    """Return True once the kubelet has said after this time that its node is ready."""
    try:
        status = plane.client().get(f"/api/v1/nodes/{name}")["status"]
    except Refused:
        return False
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    ready = conditions.get("Ready", {"status": "", "lastHeartbeatTime": None})
    heard = ready["lastHeartbeatTime"]
    return ready["status"] == "True" and heard is not None and datetime.fromisoformat(heard).timestamp() >= int(since)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial, contextlib.suppress(OSError):
        trial.connect(str(path))
        return True
    return False


def _snapshotter(directory: Path) -> str:
    """Return overlayfs where a mount of it works, else the one that copies."""
    for name in ("lower", "upper", "work", "merged"):
        (directory / "overlay-trial" / name).mkdir(parents=True, exist_ok=True)
    trial = directory / "overlay-trial"
    options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
    mounted = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")],
        capture_output=True, check=False,
    )  # fmt: skip
    shutil.rmtree(trial, ignore_errors=True)
    return "overlayfs" if mounted.returncode == 0 else "native"
