"""Static files for browsers, compressed and named by content hash; collected once per content."""

import hashlib
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from deploy.demo.nodes import ROOT
from deploy.embedded.processes import StartFailed

# Source maps, and pages of packages that are not installed.
LEFT_OUT = ("--ignore", "*.map", "--ignore", "redoc", "--ignore", "rest_framework")


def collect() -> Path:
    """Return the directory for STATIC_ROOT.

    Raises StartFailed.
    """
    place = ROOT / ".cache" / "static" / _digest()
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as directory:
        made = Path(directory) / "files"
        # The settings require these addresses; no connection is made.
        unused = {"SECRET_KEY": "-", "DATABASE_URL": "postgresql://-@localhost/-", "REDIS_URL": "redis://localhost"}
        command = [sys.executable, "manage.py", "collectstatic", "--no-input", "--verbosity", "0", *LEFT_OUT]
        environment = os.environ | unused | {"STATIC_ROOT": str(made)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed(f"the pages' files could not be collected:\n{done.stderr[-3000:]}")
        # Another launcher may have been faster; its files are the same.
        with suppress(OSError):
            made.rename(place)
    return place


def _digest() -> str:
    """Return a digest of our files and of the code that provides or writes others."""
    found = hashlib.sha256()
    # The settings name the packages that provide files.
    for package in ("Django", "drf-spectacular-sidecar", "whitenoise"):
        found.update(f"{package} {version(package)}\n".encode())
    files = sorted(path for path in (ROOT / "static").rglob("*") if path.is_file())
    for file in [ROOT / "gpucloud/fastpath/static_files.py", ROOT / "gpucloud/settings.py", *files]:
        found.update(f"{file.relative_to(ROOT)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:16]
