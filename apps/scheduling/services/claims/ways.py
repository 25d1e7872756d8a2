"""The ways in for a program under a claim, each as a line to copy; all give the same limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from agent import wire
from apps.nodes.models import Node
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED


@dataclass(frozen=True, slots=True)
class Way:
    """`line` runs on the claim's node as it stands, but for the words in capitals."""

    name: str
    title: str
    note: str
    line: str


def ways_in(claim: Claim) -> list[Way]:
    """Every way; none before the claim is placed. Its assignments' GPUs and nodes are to be at hand."""
    assignments = [item for item in claim.assignments.all() if item.state != "released"]
    if claim.state not in PLACED or not assignments:
        return []
    node, uid = assignments[0].gpu.node, str(claim.uid)
    return [
        Way(
            "exec",
            _("Run a program"),
            _("As any user; GPUCLOUD_URL with GPUCLOUD_TOKEN, or `env` of this answer, opens the claim."),
            f"python3 -m agent exec {uid} -- COMMAND",
        ),
        Way(
            "gpucloud",
            _("Run a program by the command line"),
            _("As any user, where `gpucloud login` was done."),
            f"gpucloud claim exec {uid} -- COMMAND",
        ),
        *_containers(node, uid, [item.gpu.uuid for item in assignments]),
        *_units(node, uid),
    ]


def _containers(node: Node, uid: str, gpus: Sequence[str]) -> list[Way]:
    directory, library = f"{node.run_dir}/claims/{uid}", node.library
    # Driver's libraries and devices are the NVIDIA container toolkit's part; a simulated node has none.
    drivers = "" if node.simulated else "".join(f"--device nvidia.com/gpu={gpu} " for gpu in gpus)
    visible = ",".join(gpus)
    mounts = f"-v {directory}:{directory}:ro -v {directory}/usage:{directory}/usage -v {library}:{library}:ro"
    return [
        Way(
            "cdi",
            "Docker, Podman, nerdctl",
            _(
                "By CDI; `podman` and `nerdctl` take the same options. An image that does not run as root: first `{0}`."
            ).format(f"python3 -m agent give {uid} --user UID"),
            f"docker run {drivers}--device {wire.CDI_KIND}={uid} IMAGE COMMAND",
        ),
        Way(
            "env-file",
            _("Docker without CDI"),
            _("The same by an environment file and mounts."),
            f"docker run --gpus '\"device={visible}\"' --env-file {directory}/env {mounts} IMAGE COMMAND",
        ),
    ]


def _units(node: Node, uid: str) -> list[Way]:
    directory = f"{node.run_dir}/claims/{uid}"
    return [
        Way(
            "systemd-run",
            _("A transient unit"),
            _("As root, for a service that runs as root; another user’s first needs `{0}`.").format(
                f"python3 -m agent give {uid} --user UID"
            ),
            f"systemd-run --property=EnvironmentFile={directory}/env COMMAND",
        ),
        Way(
            "systemd-unit",
            _("A systemd unit"),
            _("In its [Service] section; the unit does not start where the claim is not."),
            f"EnvironmentFile={directory}/env",
        ),
    ]
