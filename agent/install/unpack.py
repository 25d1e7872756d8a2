"""Extraction of the bundle to a directory of its own: never into one that is in use.

Running programs keep the library that they have mapped: the files of an old version are removed, not rewritten, and the
kernel keeps what is mapped until its last user ends.
"""

import hashlib
import json
import platform
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from agent.install.layout import Layout, write

PROGRAMS = ("libvcuda.so", "libvcuda-pages.so", "vcuda-arbiter")
# Isolated (-I), so that neither the caller's directory nor its environment puts other modules before these.
LAUNCHER = """\
#!{python} -I
\"\"\"The agent of this machine; its settings are the lines of {settings}.\"\"\"
import os
import sys

try:
    lines = open({settings!r}).read().splitlines()
except OSError:
    lines = []
for line in lines:
    name, equals, value = line.partition("=")
    if equals and not name.startswith("#"):
        os.environ.setdefault(name.strip(), value.strip())
home = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [home, home + "/packages/{tag}"]
from agent.__main__ import main

sys.exit(main())
"""


class Unfit(Exception):
    """Mismatch of bundle and machine; the message names it."""


def manifest(bundle: Path) -> dict[str, Any]:
    """Return the bundle's manifest."""
    with zipfile.ZipFile(bundle) as archive:
        facts: dict[str, Any] = json.loads(archive.read("manifest.json"))
        return facts


def unit(bundle: Path) -> str:
    """Return the text of systemd's unit."""
    with zipfile.ZipFile(bundle) as archive:
        return archive.read("gpucloud-agent.service").decode()


def unpack(bundle: Path, layout: Layout) -> Path:
    """Return the complete directory of the bundle's version; make it if it is missing. Raises Unfit, OSError."""
    facts = manifest(bundle)
    if facts["machine"] != platform.machine():
        raise Unfit(f"The bundle is for {facts['machine']}, and this machine is {platform.machine()}.")
    name = f"{facts['version']}-{hashlib.sha256(bundle.read_bytes()).hexdigest()[:12]}"
    place = layout.versions / name
    if place.is_dir():
        return place
    layout.versions.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = layout.versions / ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    with zipfile.ZipFile(bundle) as archive:
        for member in archive.namelist():
            # Only this Python's packages, and not the part that unpacks.
            if member != "__main__.py" and (
                not member.startswith("packages/") or member.startswith(f"packages/{tag}/")
            ):
                archive.extract(member, fresh)
    for program in PROGRAMS:
        (fresh / program).chmod(0o755)
    text = LAUNCHER.format(python=sys.executable, settings=str(layout.settings), tag=tag)
    write(fresh / "gpucloud-agent", text, mode=0o755)
    _open_to_all(fresh)
    fresh.rename(place)
    return place


def remove_others(layout: Layout, keep: set[str]) -> None:
    """Remove every version but these."""
    for place in layout.versions.iterdir():
        if place.name not in keep:
            shutil.rmtree(place, ignore_errors=True)


def _open_to_all(directory: Path) -> None:
    """Open the directory to tenants, who load the library and start `gpucloud-agent exec`, whatever the umask was."""
    directory.chmod(0o755)
    for path in directory.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
