"""Launch methods: the ways to start a program under a claim, each as lines to copy; all give the same limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from agent import wire
from apps.nodes.models import Node
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED

# The command that an installation and our image have on the PATH.
INSTALLED = "gpucloud-agent"
# The library of an agent that was not installed: below the checkout, or below the image's program.
BUILT = "/libvcuda/build/libvcuda.so"
IMAGE = "/srv/gpucloud"
# The run directory of the machine's own agent; container engines look for its CDI specs.
SYSTEM_RUN_DIR = "/run/gpucloud"


@dataclass(frozen=True, slots=True)
class LaunchMethod:
    """One launch method. `line` runs on the claim's node as it is, but for the words in capitals."""

    name: str
    title: str
    note: str
    line: str


def agent_command(node: Node) -> str:
    """Return the beginning of the agent's commands on this node: installed, in a checkout, or in our image."""
    if not node.library.endswith(BUILT):
        return INSTALLED
    root = node.library.removesuffix(BUILT)
    return INSTALLED if root == IMAGE else f"{root}/agent/{INSTALLED}"


def launch_methods(claim: Claim) -> list[LaunchMethod]:
    """Return every launch method; none before the claim is placed.

    Its assignments, GPUs and nodes should be prefetched.
    """
    assignments = [item for item in claim.assignments.all() if item.state != "released"]
    if claim.state not in PLACED or not assignments:
        return []
    node, uid = assignments[0].gpu.node, str(claim.uid)
    return [
        LaunchMethod(
            "gpucloud",
            _("Run a program"),
            _("As any user, where `gpucloud login` was done."),
            f"gpucloud claim exec {uid} -- COMMAND",
        ),
        LaunchMethod(
            "exec",
            _("Run a program by the agent"),
            _("As any user; GPUCLOUD_URL with GPUCLOUD_TOKEN, or `env` of this answer, opens the claim."),
            f"{agent_command(node)} exec {uid} -- COMMAND",
        ),
        *_containers(node, uid, [item.gpu.uuid for item in assignments]),
        *_units(node, uid),
    ]


def _containers(node: Node, uid: str, gpus: Sequence[str]) -> list[LaunchMethod]:
    # The NVIDIA container toolkit adds the driver's libraries and devices; a simulated node has none.
    drivers = "" if node.simulated else "".join(f"--device nvidia.com/gpu={gpu} " for gpu in gpus)
    engine = "docker run" if node.run_dir == SYSTEM_RUN_DIR else f"podman --cdi-spec-dir {node.run_dir}/cdi run"
    by_cdi = LaunchMethod(
        "cdi",
        "Docker, Podman, nerdctl",
        _(
            "By CDI; `podman` and `nerdctl` take the same options. An image that does not run as root: first `{0}`."
        ).format(_give(node, uid)),
        f"{engine} {drivers}--device {wire.CDI_KIND}={uid} IMAGE COMMAND",
    )
    # The paths of the simulated driver and its node's file are known to the agent only: its CDI spec names them.
    return [by_cdi] if node.simulated else [by_cdi, _by_env_file(node, uid, gpus)]


def _by_env_file(node: Node, uid: str, gpus: Sequence[str]) -> LaunchMethod:
    directory, library = f"{node.run_dir}/claims/{uid}", node.library
    # The last mount: a process that lost its environment gets no GPU instead of one without limits.
    mounts = (
        f"-v {directory}:{directory}:ro -v {directory}/usage:{directory}/usage -v {library}:{library}:ro "
        f"-v {_required(node)}:ro"
    )
    visible = ",".join(gpus)
    return LaunchMethod(
        "env-file",
        _("Docker without CDI"),
        _("The same by an environment file and mounts."),
        f"docker run --gpus '\"device={visible}\"' --env-file {directory}/env {mounts} IMAGE COMMAND",
    )


def _units(node: Node, uid: str) -> list[LaunchMethod]:
    directory = f"{node.run_dir}/claims/{uid}"
    properties = (
        f"EnvironmentFile={directory}/env",
        # A file system of its own: systemd would otherwise make the file on the machine, for every program there.
        "TemporaryFileSystem=/etc/gpucloud:ro",
        f"BindReadOnlyPaths={_required(node)}",
        # For units with ProtectSystem=strict.
        f"ReadWritePaths={directory}/usage",
    )
    return [
        LaunchMethod(
            "systemd-run",
            _("A transient unit"),
            _("As root, for a service that runs as root; another user’s first needs `{0}`.").format(_give(node, uid)),
            f"systemd-run {' '.join(f'--property={one}' for one in properties)} COMMAND",
        ),
        LaunchMethod(
            "systemd-unit",
            _("A systemd unit"),
            _("In its [Service] section; the unit does not start where the claim is not."),
            "\n".join(properties),
        ),
    ]


def _give(node: Node, uid: str) -> str:
    return f"{agent_command(node)} give {uid} --user UID"


def _required(node: Node) -> str:
    """Return the mount of the file that requires limits: its path, and the path at which a program looks for it."""
    return f"{node.run_dir}/container/require-limits:/etc/gpucloud/require-limits"
