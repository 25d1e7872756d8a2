"""The remoting component: a program of others that runs CUDA calls which come over a connection.

Nothing of it is part of gpucloud. An operator installs it; the agent finds its server by GPUCLOUD_REMOTE_SERVER or on
the PATH. Another component is one more row of COMPONENTS, here and in `gpucloud_cli/remote_client.py`.
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# The server listens there, in a network namespace of its own.
PORT = 14833


class Kind(NamedTuple):
    """A component that the agent knows how to start."""

    name: str
    # The server's program.
    program: str
    # Words in the program by which it is told from others; the agent depends on what they name.
    marks: tuple[bytes, ...]
    environment: Mapping[str, str]


# Lupine: docs/remote.md says which version was tried with which programs.
COMPONENTS = (Kind("lupine", "lupine_driver_server", (b"LUPINE_PORT", b"x-lupine"), {"LUPINE_PORT": str(PORT)}),)


class Unusable(Exception):
    """No component that the agent can start; the message says why."""


class Component(NamedTuple):
    """An installed component."""

    kind: Kind
    path: Path
    # The first digits of the program's SHA-256: which build it is.
    build: str


def find(named: str | None, search_path: str | None) -> Component:
    """Return the component whose server is named, or is on the search path. Raises Unusable."""
    for kind in COMPONENTS:
        place = named or shutil.which(kind.program, path=search_path)
        if place is None:
            continue
        try:
            content = Path(place).read_bytes()
        except OSError as error:
            raise Unusable(f"{place} cannot be read: {error.strerror}.") from error
        if all(mark in content for mark in kind.marks):
            return Component(kind, Path(place).absolute(), hashlib.sha256(content).hexdigest()[:12])
    if named:
        raise Unusable(f"{named} is the server of no known component ({', '.join(kind.name for kind in COMPONENTS)}).")
    raise Unusable(f"No remoting server is on the PATH ({', '.join(kind.program for kind in COMPONENTS)}).")
