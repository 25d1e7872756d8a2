"""The settings of the operator: options of `python -m agent run` and the environment. Read once, refused early."""

import importlib.util
import shutil
import socket
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, cast, get_args

from agent import backoff, job_images, job_users, remote_settings, rundir, wire
from agent.job_images import Engine
from agent.job_users import JobUsers
from agent.local_wire import AuditMode
from agent.remote_settings import RemoteSettings

# Container runtimes give a program ten seconds to end, and programs are written for that.
GRACE_SECONDS = 10.0
# Reading 32 claims' pages anew takes a few milliseconds; a shorter time would not stop anybody who tampers.
DRIFT_SECONDS = 5.0
LEAST_DRIFT_SECONDS = 0.1
# A GPU that recovers and fails again does so within minutes.
HOLD_SECONDS = 300.0
# ECC counters and temperatures change slowly, and each report is a write of the server's for every GPU.
HEALTH_SECONDS = 30.0
LEAST_HEALTH_SECONDS = 0.2
# A claim's pages take less than one; the state file and the log less than ten.
LEAST_FREE_MIB = 16
# A kernel that runs ends first, and a process of many threads takes a while to stop.
SUSPEND_SECONDS = 30.0
JOBS_DISK_MIB = 20_480
_BUILT = Path(__file__).resolve().parent.parent / "libvcuda" / "build"
# Docker, Podman, containerd and CRI-O read it unless configured otherwise; it is empty after a reboot, like our claims.
SYSTEM_CDI_DIR = Path("/var/run/cdi")
# gpu-manager's address. Prometheus scrapes the pod from another machine: not on loopback.
POD_METRICS = ("0.0.0.0", 5678)  # noqa: S104 - the cluster decides which of the pod's addresses it uses
# The path in the DaemonSet's pods.
CLUSTER_TOKEN = "/var/run/secrets/gpucloud/token"  # noqa: S105 - a path
MPS_CONTROL = "nvidia-cuda-mps-control"
LIBRARY_DIRECTORIES = (_BUILT, Path("/usr/local/lib/gpucloud"), Path("/usr/lib/gpucloud"))


class SettingsError(Exception):
    """Missing or invalid setting; the message names it."""


class Library(NamedTuple):
    """The files that a limited process loads."""

    # libvcuda.so
    path: Path
    # The simulated driver's directory and node; None on a real machine.
    simulated_driver: Path | None = None
    simulated_node: Path | None = None


class Kubelet(NamedTuple):
    """The kubelet whose device plugin or driver for Dynamic Resource Allocation the agent is."""

    # The directory of kubelet.sock.
    directory: Path
    # The socket at which it lists the containers with their devices.
    pod_resources: Path
    # The machine's node name in its cluster.
    node: str
    # Its `--root-dir`. That of kubelet.sock is a constant, whatever the root is.
    root: Path
    device_plugin: bool = True
    dra: bool = False

    @property
    def plugin_registry(self) -> Path:
        """The directory in which the kubelet looks for drivers' sockets."""
        return self.root / "plugins_registry"

    @property
    def driver_directory(self) -> Path:
        """The directory of the driver's own socket."""
        return self.root / "plugins" / wire.DRA_DRIVER


class Cluster(NamedTuple):
    """The cluster through which the agent enrols."""

    # Its name at the control plane.
    name: str
    # The path of the pod's token; the kubelet writes it anew before it expires.
    token_file: Path


class Settings(NamedTuple):
    """A valid set of settings."""

    # Without a slash at its end.
    server: str
    state_dir: Path
    run_dir: Path
    # The directory in which container runtimes look for CDI specs; None: none are written.
    cdi_dir: Path | None
    library: Library
    pages_library: Path
    # May be missing: without it GPUs are shared without turns.
    arbiter: Path
    # Loaded before pynvml looks for NVML by name; None for the system's own.
    nvml_library: Path | None
    # The machine owner's audit mode, which overrides the pool's; None: the pool's.
    audit: AuditMode | None
    # The host and port for Prometheus; None: no metrics.
    metrics: tuple[str, int] | None
    # None: the agent serves no kubelet.
    kubelet: Kubelet | None
    # None: the agent enrols with a one-time token.
    cluster: Cluster | None
    # True if a claim's programs get a control group of their own, if one can be made.
    cgroups: bool
    # Seconds between two checks for drift.
    drift_seconds: float
    grace_seconds: float
    # A GPU must have been well for this long before it takes new claims again.
    hold_seconds: float
    # Seconds between two reports of the GPUs' health.
    health_seconds: float
    # With less free space than this in the state or run directory, the node takes no new claims.
    least_free_bytes: int
    backoff_cap_seconds: float
    # Host memory that the suspended claims of this node may take together.
    host_memory_bytes: int
    # A driver call that suspends or resumes a process may take so long, and more by the size of its memory.
    suspend_seconds: float
    # HOST:PORT at which other agents reach this one to bring it running programs; None: it sends and takes none.
    carry: str | None = None
    # The users, first and last of each range, whose programs it takes from other nodes.
    carry_users: tuple[tuple[int, int], ...] = ()
    # The program; None: it is not on this machine.
    criu: str | None = None
    # nvidia-cuda-mps-control; None: it is not on this machine, and no pool with the back end mps is served.
    mps_control: str | None = None
    # The users as which programs of jobs run; None: the agent starts none.
    jobs: JobUsers | None = None
    # The directory of their runs.
    jobs_dir: Path = Path("/var/lib/gpucloud-agent-jobs")
    # Host memory of each run; 0: in proportion to its claim's part of the node's GPUs.
    jobs_memory_mib: int = 0
    # Disk space of each run.
    jobs_disk_mib: int = JOBS_DISK_MIB
    # Starts those that name an image; None: there are none.
    jobs_engine: Engine | None = None
    # None: no program of another machine uses this node's GPUs.
    remote: RemoteSettings | None = None

    def may_carry(self, uid: int) -> bool:
        """Return whether this user's programs may come from other nodes."""
        return any(first <= uid <= last for first, last in self.carry_users)

    @property
    def is_dra_driver(self) -> bool:
        """True if the agent is a kubelet's driver for Dynamic Resource Allocation."""
        return self.kubelet is not None and self.kubelet.dra


def read(*, server: str | None, state_dir: str | None, environment: Mapping[str, str]) -> Settings:
    """Read the settings; options override the environment. Raises SettingsError."""
    state = Path(state_dir or environment.get("GPUCLOUD_STATE_DIR") or "/var/lib/gpucloud-agent").absolute()
    run_dir = Path(run).absolute() if (run := environment.get("GPUCLOUD_RUN_DIR")) else rundir.default(state)
    library, kubelet = _library(environment), _kubelet(environment)
    cdi_dir = _cdi_dir(environment.get("GPUCLOUD_CDI_DIR"), run_dir)
    _require_cdi(kubelet, cdi_dir)
    return Settings(
        server=_server(server or environment.get("GPUCLOUD_SERVER")),
        state_dir=state,
        run_dir=run_dir,
        cdi_dir=cdi_dir,
        library=library,
        pages_library=library.path.with_name("libvcuda-pages.so"),
        arbiter=library.path.with_name("vcuda-arbiter"),
        nvml_library=_nvml_library(library),
        audit=_audit(environment.get("GPUCLOUD_AUDIT")),
        metrics=_address(environment, "GPUCLOUD_METRICS", otherwise=POD_METRICS if kubelet else None),
        kubelet=kubelet,
        cluster=_cluster(environment),
        cgroups=_on(environment, "GPUCLOUD_CGROUPS"),
        drift_seconds=max(_seconds(environment, "GPUCLOUD_DRIFT_SECONDS", DRIFT_SECONDS), LEAST_DRIFT_SECONDS),
        grace_seconds=_seconds(environment, "GPUCLOUD_RELEASE_GRACE_SECONDS", GRACE_SECONDS),
        hold_seconds=_seconds(environment, "GPUCLOUD_HEALTH_HOLD_SECONDS", HOLD_SECONDS),
        health_seconds=max(_seconds(environment, "GPUCLOUD_HEALTH_SECONDS", HEALTH_SECONDS), LEAST_HEALTH_SECONDS),
        least_free_bytes=_mebibytes(environment, "GPUCLOUD_LEAST_FREE_MIB", LEAST_FREE_MIB) << 20,
        backoff_cap_seconds=_seconds(environment, "GPUCLOUD_BACKOFF_CAP_SECONDS", backoff.CAP_SECONDS),
        host_memory_bytes=_mebibytes(environment, "GPUCLOUD_SUSPEND_MEMORY_MIB", available_mib() // 2) << 20,
        suspend_seconds=_seconds(environment, "GPUCLOUD_SUSPEND_SECONDS", SUSPEND_SECONDS),
        carry=_carry(environment.get("GPUCLOUD_CARRY")),
        carry_users=_users(environment.get("GPUCLOUD_CARRY_UIDS") or ""),
        criu=environment.get("GPUCLOUD_CRIU") or shutil.which("criu"),
        mps_control=find_mps_control(library, environment),
        jobs=_jobs(environment.get("GPUCLOUD_JOBS")),
        jobs_dir=Path(environment.get("GPUCLOUD_JOBS_DIR") or state.with_name(f"{state.name}-jobs")).absolute(),
        jobs_memory_mib=_mebibytes(environment, "GPUCLOUD_JOBS_MEMORY_MIB", 0),
        jobs_disk_mib=_mebibytes(environment, "GPUCLOUD_JOBS_DISK_MIB", JOBS_DISK_MIB),
        jobs_engine=_jobs_engine(environment, cdi_dir),
        remote=_remote(environment),
    )


def _require_cdi(kubelet: Kubelet | None, cdi_dir: Path | None) -> None:
    if kubelet is not None and cdi_dir is None:
        raise SettingsError("A kubelet's containers get their claims by CDI: GPUCLOUD_CDI_DIR cannot be off.")


def find_mps_control(library: Library, environment: Mapping[str, str]) -> str | None:
    """Return the path of nvidia-cuda-mps-control; None if there is none. The simulated driver has its own."""
    named = environment.get("GPUCLOUD_MPS_CONTROL")
    if named == "off":
        return None
    if named:
        return named if Path(named).is_file() else None
    path = str(library.simulated_driver) if library.simulated_driver is not None else environment.get("PATH")
    return shutil.which(MPS_CONTROL, path=path)


def _jobs(text: str | None) -> JobUsers | None:
    try:
        return job_users.parse(text)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _remote(environment: Mapping[str, str]) -> RemoteSettings | None:
    try:
        return remote_settings.parse(environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _jobs_engine(environment: Mapping[str, str], cdi_dir: Path | None) -> Engine | None:
    try:
        engine = job_images.parse(environment, _jobs(environment.get("GPUCLOUD_JOBS")))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if engine is not None and cdi_dir is None:
        raise SettingsError("Containers of jobs get their claims by CDI: GPUCLOUD_CDI_DIR cannot be off.")
    return engine


def _carry(text: str | None) -> str | None:
    if not text or text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise SettingsError(f"GPUCLOUD_CARRY={text} is not HOST:PORT; with port 0, any free one.")
    return text


def _users(text: str) -> tuple[tuple[int, int], ...]:
    ranges = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise SettingsError(f"GPUCLOUD_CARRY_UIDS={text} is no list of users and ranges, like 1000,2000-2999.")
        ranges.append((int(first), int(last or first)))
    return tuple(ranges)


def available_mib() -> int:
    """Return the host memory that programs can still get, by the kernel."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("MemAvailable:")), 0)


def read_nvml_library(environment: Mapping[str, str]) -> Path | None:
    """Read `nvml_library` alone, for commands that need no server."""
    return _nvml_library(_library(environment))


def _nvml_library(library: Library) -> Path | None:
    return library.simulated_driver / "libnvidia-ml.so.1" if library.simulated_driver else None


def _cdi_dir(named: str | None, run_dir: Path) -> Path | None:
    if named == "off":
        return None
    if named:
        return Path(named).absolute()
    # An agent beside the machine's own one (a demo, a test, a user's) leaves the machine's directory alone.
    return SYSTEM_CDI_DIR if run_dir == rundir.SYSTEM else run_dir / "cdi"


def _kubelet(environment: Mapping[str, str]) -> Kubelet | None:
    directory = environment.get("GPUCLOUD_KUBELET_DIR")
    device_plugin = _on(environment, "GPUCLOUD_DEVICE_PLUGIN")
    dra = _on(environment, "GPUCLOUD_DRA", otherwise="off")
    if not directory or directory == "off":
        if dra:
            raise SettingsError("GPUCLOUD_DRA=on needs GPUCLOUD_KUBELET_DIR: which kubelet's driver is it?")
        return None
    if not device_plugin and not dra:
        raise SettingsError("GPUCLOUD_KUBELET_DIR needs GPUCLOUD_DEVICE_PLUGIN or GPUCLOUD_DRA to be on.")
    if importlib.util.find_spec("grpc") is None:
        raise SettingsError(
            "GPUCLOUD_KUBELET_DIR needs grpcio: the image has it, the bundle for single machines has not."
        )
    path = Path(directory).absolute()
    root = Path(environment.get("GPUCLOUD_KUBELET_ROOT") or path.parent).absolute()
    pod_resources = environment.get("GPUCLOUD_POD_RESOURCES") or root / "pod-resources" / "kubelet.sock"
    return Kubelet(
        directory=path,
        pod_resources=Path(pod_resources).absolute(),
        node=environment.get("GPUCLOUD_KUBERNETES_NODE") or socket.gethostname(),
        root=root,
        device_plugin=device_plugin,
        dra=dra,
    )


def _cluster(environment: Mapping[str, str]) -> Cluster | None:
    name = environment.get("GPUCLOUD_CLUSTER")
    token_file = Path(environment.get("GPUCLOUD_CLUSTER_TOKEN") or CLUSTER_TOKEN).absolute()
    return Cluster(name, token_file) if name else None


def _server(url: str | None) -> str:
    if not url:
        raise SettingsError("The control plane's address is missing: --server http://HOST:PORT, or GPUCLOUD_SERVER.")
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"--server {url} is not an address like http://HOST:PORT.")
    return url.rstrip("/")


def _library(environment: Mapping[str, str]) -> Library:
    named = environment.get("GPUCLOUD_LIBRARY")
    if named:
        path = Path(named).absolute()
    else:
        # The file may be missing: that is reported when it is first needed.
        places = [directory / "libvcuda.so" for directory in LIBRARY_DIRECTORIES]
        path = next((place for place in places if place.exists()), places[0])
    simulated = environment.get("GPUCLOUD_SIM_NODE")
    if not simulated:
        return Library(path)
    driver = Path(environment.get("GPUCLOUD_SIM_DRIVER") or path.parent / "sim").absolute()
    return Library(path, simulated_driver=driver, simulated_node=Path(simulated).absolute())


def _audit(mode: str | None) -> AuditMode | None:
    if not mode:
        return None
    if mode not in get_args(AuditMode):
        raise SettingsError(f"GPUCLOUD_AUDIT={mode} is none of {', '.join(get_args(AuditMode))}.")
    return cast(AuditMode, mode)


def _address(environment: Mapping[str, str], name: str, *, otherwise: tuple[str, int] | None) -> tuple[str, int] | None:
    """Parse HOST:PORT, [IPV6]:PORT, a port of loopback, or off."""
    text = environment.get(name)
    if not text:
        return otherwise
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(f"{name}={text} is neither a port nor HOST:PORT.")
    return host.strip("[]") or "127.0.0.1", int(port)


def _on(environment: Mapping[str, str], name: str, *, otherwise: str = "on") -> bool:
    text = environment.get(name) or otherwise
    if text not in ("on", "off"):
        raise SettingsError(f"{name}={text} is neither on nor off.")
    return text == "on"


def _mebibytes(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name) or str(otherwise)
    if not text.isdecimal() or len(text) > 12:
        raise SettingsError(f"{name}={text} is not a number of MiB.")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    text = environment.get(name)
    if not text:
        return otherwise
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise SettingsError(f"{name}={text} is not a number of seconds.")
    return seconds
