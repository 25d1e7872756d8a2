"""Containers without Docker: a spec's edits applied to a root file system of this machine's own programs.

There are two runtimes: namespaces and bind mounts of the test's own, and a real OCI runtime (crun, runc) if it is
installed.
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.agent.cdi_rules import Edits, Mount
from tests.agent.stage import GPULOAD

# The minimum for a program to run; a real image has its own.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAM = "/opt/gpuload"


class Container(NamedTuple):
    """A container to start: `arguments` under these edits, in `directory`."""

    directory: Path
    edits: Edits
    arguments: Sequence[str]
    # Path inside; there is no user namespace, so ids are the same outside.
    uid: int = 0

    @property
    def mounts(self) -> list[Mount]:
        """Return the image's mounts, then the edits', parents before their contents."""
        image = [Mount(one, one, options=["ro", "bind"]) for one in SYSTEM if not Path(one).is_symlink()]
        image += [Mount(one, one, options=["rw", "bind"]) for one in DEVICES]
        image.append(Mount(str(GPULOAD), PROGRAM, options=["ro", "bind"]))
        nodes = [Mount(one.host_path or one.path, one.path, options=["rw", "bind"]) for one in self.edits.device_nodes]
        edits = sorted(self.edits.mounts, key=lambda mount: mount.container_path.count("/"))
        return [*image, *nodes, *edits]

    def prepare(self) -> Path:
        """Prepare the root file system: links into /usr as on this machine, and an /etc of its own."""
        root = self.directory / "rootfs"
        for directory in ("etc", "proc", "dev", "tmp", "opt"):
            (root / directory).mkdir(parents=True)
        for link in SYSTEM:
            if Path(link).is_symlink():
                (root / link[1:]).symlink_to(Path(link).readlink())
        for file in ("ld.so.cache", "ld.so.conf"):
            if (Path("/etc") / file).exists():
                shutil.copy(Path("/etc") / file, root / "etc" / file)
        return root


def namespaces_open() -> bool:
    """Return True if this process may create mount and pid namespaces."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "mount", "-t", "tmpfs", "x", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def namespace_command(container: Container) -> list[str]:
    """Return the command that runs it in mount and pid namespaces of its own; its program is pid 1 there."""
    root = container.prepare()
    script = container.directory / "enter.sh"
    # A tmpfs first: mount points created in it disappear with the namespace.
    lines = ["set -e", f"mount -t tmpfs none {root}/dev", f"mount -t tmpfs none {root}/opt"]
    for mount in container.mounts:
        inside, host = shlex.quote(f"{root}{mount.container_path}"), shlex.quote(mount.host_path)
        make = f"mkdir -p {inside}"
        if not Path(mount.host_path).is_dir():
            make = f"mkdir -p $(dirname {inside}); : >> {inside}"
        # A mount point inside an existing mount is the host's own file.
        lines += [f"[ -e {inside} ] || {{ {make}; }}", f"mount --bind {host} {inside}"]
        if not mount.writable:
            lines.append(f"mount -o remount,bind,ro {inside}")
    lines.append(f"mount -t proc proc {root}/proc")
    variables = " ".join(shlex.quote(one) for one in (PATH, *container.edits.env))
    # A change of user clears the parent-death signal: request it again.
    user = f"setpriv --reuid={container.uid} --regid={container.uid} --clear-groups --pdeathsig=KILL"
    lines.append(f"exec env -i {variables} chroot {root} {user} {shlex.join(container.arguments)}")
    script.write_text("\n".join(lines) + "\n")
    options = ["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    return ["unshare", *options, "sh", str(script)]


def runtime_command(container: Container, runtime: str, name: str) -> list[str]:
    """Return the command that runs it by an OCI runtime."""
    root = container.prepare()
    (container.directory / "config.json").write_text(json.dumps(_config(container, root)))
    # The state directory is the test's: no files are left in /run.
    options = [f"--root={container.directory / 'state'}"]
    if runtime == "crun":
        options.append("--cgroup-manager=disabled")
    return [runtime, *options, "run", f"--bundle={container.directory}", name]


def _config(container: Container, root: Path) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    mounts += [
        {"destination": one.container_path, "type": "bind", "source": one.host_path, "options": one.options}
        for one in container.mounts
    ]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": False},
        "process": {
            "user": {"uid": container.uid, "gid": container.uid},
            "args": list(container.arguments),
            "env": [PATH, *container.edits.env],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "mounts": mounts,
        "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}]},
    }
