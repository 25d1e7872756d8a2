"""An OCI image from this machine's own files: a shell, a few commands, the simulated GPU's load generator.

Nothing is pulled and nothing is built: the image has the programs, the shared libraries that `ldd` names, and the
loader, each under its own path. It is the image of the sandboxes, too.
"""

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.agent.stage import GPULOAD

NAME = "localhost/gpucloud-test:1"
COMMANDS = ("sh", "sleep", "cat", "env", "ls", "kill", "grep", "id", "touch", "date", "find")
# The check of the chart's probes, where our own image has it.
ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES, ALIVE = "/srv/gpucloud", "deploy/docker/alive.sh"
# Docker's names of architectures, which runtimes compare with the machine's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
Json = dict[str, Any]


def write(path: Path) -> None:
    """Write the image as an archive that `ctr images import` reads."""
    layer = _layer()
    config = _encoded(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            # A sandbox has nothing to do.
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "infinity"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            "history": [],
        }
    )
    kind = "application/vnd.oci.image"
    manifest = _encoded(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(config, f"{kind}.config.v1+json"),
            "layers": [_descriptor(layer, f"{kind}.layer.v1.tar")],
        }
    )
    named = _descriptor(manifest, f"{kind}.manifest.v1+json") | {"annotations": {"io.containerd.image.name": NAME}}
    index = _encoded({"schemaVersion": 2, "mediaType": f"{kind}.index.v1+json", "manifests": [named]})
    blobs = {f"blobs/sha256/{_digest(one).removeprefix('sha256:')}": one for one in (layer, config, manifest)}
    files = {"oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}), "index.json": index, **blobs}
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            _add(archive, name, content, mode=0o644)


def _layer() -> bytes:
    programs = {f"bin/{name}": Path(found) for name in COMMANDS if (found := shutil.which(name))}
    programs["bin/gpuload"] = GPULOAD
    libraries = {str(path).lstrip("/"): path for program in programs.values() for path in _libraries(program)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for directory in ("tmp", "etc", "proc", "sys", "dev", "var/tmp"):
            _add_directory(archive, directory)
        _add(archive, f"{SOURCES.lstrip('/')}/{ALIVE}", (ROOT / ALIVE).read_bytes(), mode=0o755)
        _add(archive, "etc/passwd", b"root:x:0:0::/:/bin/sh\n", mode=0o644)
        for name, source in sorted((programs | libraries).items()):
            _add(archive, name, source.resolve().read_bytes(), mode=0o755)
    return made.getvalue()


def _libraries(program: Path) -> list[Path]:
    """Return the shared libraries and the loader that a program needs, as it names them."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", told)]


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _add_directory(archive: tarfile.TarFile, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
    archive.addfile(entry)


def _encoded(value: Json) -> bytes:
    return json.dumps(value).encode()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(content: bytes, kind: str) -> Json:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
