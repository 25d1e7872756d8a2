"""The agent's bundle: one zip file that Python runs, with everything a GPU machine needs.

It is built from this server's own parts: its agent/, its libvcuda, its installed packages (and, for other Pythons,
packages that an operator put into agent-packages/cp312/ and the like). Every process builds the same bytes from the
same files, so the digest in one process's command matches the file that another one sends.
"""

import functools
import hashlib
import importlib.metadata
import io
import json
import platform
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from django.conf import settings

# Third-party imports of agent/, checked by a test. Without gRPC, which a kubelet's agent has in its image.
PACKAGES = ("msgspec", "nvidia-ml-py", "prometheus-client", "websockets")
PROGRAMS = ("libvcuda.so", "libvcuda-pages.so", "vcuda-arbiter")
# The earliest time of the zip format.
EPOCH = (1980, 1, 1, 0, 0, 0)


class Bundle(NamedTuple):
    """The bundle's bytes with their digest and version."""

    content: bytes
    sha256: str
    version: str

    @property
    def path(self) -> str:
        """Path on this server; it changes with the content."""
        return f"/agent/gpucloud-agent-{self.sha256[:16]}.pyz"


@functools.cache
def bundle() -> Bundle | None:
    """Return the bundle, built once in each process; None if libvcuda is not built here."""
    root = Path(settings.BASE_DIR)
    built = root / "libvcuda" / "build"
    if not all((built / name).is_file() for name in PROGRAMS):
        return None
    files = dict(_files(root, built))
    version = _version(files["agent/__init__.py"].decode())
    pythons = sorted({name.split("/")[1] for name in files if name.startswith("packages/")})
    told = {
        "version": version,
        "machine": platform.machine(),
        "pythons": pythons,
        "pages": json.loads((built / "abi.json").read_text())["version"],
    }
    files["manifest.json"] = json.dumps(told, indent=2).encode()
    content = _zip(files)
    return Bundle(content, hashlib.sha256(content).hexdigest(), version)


def command(*, server: str, token: str) -> str:
    """Return the one-line command for the machine's root: fetch, verify, install and enrol."""
    made = bundle()
    if made is None:
        return f"GPUCLOUD_ENROL_TOKEN={token} python -m agent run --server {server}"
    return (
        f"(f=$(mktemp) && trap 'rm -f $f' EXIT && curl -fsSo $f {server}{made.path} && "
        f"echo '{made.sha256}  '$f | sha256sum -c --quiet && "
        f"GPUCLOUD_ENROL_TOKEN={token} python3 $f install --server {server})"
    )


def _files(root: Path, built: Path) -> Iterator[tuple[str, bytes]]:
    for path in (root / "agent").rglob("*.py"):
        yield str(path.relative_to(root)), path.read_bytes()
    yield "__main__.py", (root / "agent" / "install" / "start.py").read_bytes()
    yield "gpucloud-agent.service", (root / "deploy" / "systemd" / "gpucloud-agent.service").read_bytes()
    yield "LICENSE", (root / "LICENSE").read_bytes()
    for name in PROGRAMS:
        yield name, (built / name).read_bytes()
    own = f"packages/cp{sys.version_info[0]}{sys.version_info[1]}"
    for package in PACKAGES:
        for file in importlib.metadata.distribution(package).files or ():
            # Without the package's commands and the metadata of its installation here.
            if ".." not in file.parts and not {"__pycache__", "RECORD", "INSTALLER", "REQUESTED"} & set(file.parts):
                yield f"{own}/{file}", Path(str(file.locate())).read_bytes()
    others = root / "agent-packages"
    for path in others.rglob("*") if others.is_dir() else ():
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"packages/{path.relative_to(others)}", path.read_bytes()


def _version(source: str) -> str:
    line = next(line for line in source.splitlines() if line.startswith("VERSION = "))
    return line.split('"')[1]


def _zip(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), files[name], zipfile.ZIP_DEFLATED)
    return out.getvalue()
