"""The containers of this node's runs: what a claim's programs need in them, and the end of those without a keeper."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.job_images import ALLOWED, Engine
from agent.jobs import engine as client
from agent.jobs import unit
from agent.jobs.engine import LABEL, PREFIX
from agent.jobs.run_directory import Container
from agent.launch import cdi
from agent.node import UID_CHARACTERS

OFF = "This node runs no container images: an operator sets GPUCLOUD_JOBS_ENGINE for its agent."
# The driver's own libraries, as `nvidia-ctk cdi generate` describes them for an engine.
DRIVER_SPECS = (Path("/etc/cdi"), Path("/var/run/cdi"))
# An engine's file of variables has a line for each.
LINE_ENDS = re.compile(r"[\x00\n\r]")


class Access(NamedTuple):
    """The needs of a container under its claim: variables, and options of the engine's command."""

    environment: dict[str, str]
    options: list[str]


def find_obstacle(engine: Engine | None, image: str, environment: Mapping[str, str]) -> str | None:
    """Return why the engine will not run the image; None if it may."""
    if engine is None:
        return OFF
    if not engine.allows(image):
        return f"This node does not run {image}: its operator allows {', '.join(engine.allowed)} ({ALLOWED})."
    odd = [name for name, value in environment.items() if LINE_ENDS.search(value)]
    if odd:
        return f"Variable {odd[0]} has several lines, which a container cannot be given: put them into a file."
    return None


def read_access(cdi_dir: Path, claim_uid: str, *, simulated: bool) -> Access | None:
    """Return what the claim's CDI spec adds to containers; None if the spec is not there.

    As options rather than by the device's name: Docker knows CDI since 28.2 only, and no engine reads the spec of an
    agent with a run directory of its own. The driver's libraries are of another spec, NVIDIA's, if there is one.
    """
    try:
        spec = msgspec.json.decode((cdi_dir / cdi.file_name(claim_uid)).read_bytes())
        edits: dict[str, Any] = spec["devices"][0]["containerEdits"]
    except (OSError, msgspec.DecodeError, LookupError, TypeError):
        return None
    environment = dict(one.split("=", 1) for one in edits["env"])
    options = [_mount(one) for one in edits["mounts"]]
    options += [f"--device={one['path']}" for one in edits.get("deviceNodes", ())]
    if not simulated and any(path.exists() and any(path.glob("nvidia*")) for path in DRIVER_SPECS):
        gpus = filter(None, environment.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
        options += [f"--device=nvidia.com/gpu={gpu}" for gpu in gpus]
    return Access(environment, options)


def _mount(mount: Mapping[str, Any]) -> str:
    is_writable = mount["options"][-1] == "rw"
    return f"--mount=type=bind,src={mount['hostPath']},dst={mount['containerPath']}{'' if is_writable else ',ro'}"


class Containers:
    """The engine of this node, from the agent's side. Its methods wait for the engine."""

    def __init__(self, engine: Engine, runs: Path) -> None:
        self._engine, self._runs = engine, runs

    def order(self, uid: str, image: str) -> Container:
        """Return the order of a run's container."""
        return Container(
            engine=self._engine.path,
            options=list(self._engine.options),
            image=image,
            name=client.name_of(uid),
            label=str(self._runs),
        )

    def find(self) -> set[str]:
        """Return the runs that have a container, also an ended one. Raises EngineError."""
        found = client.call(
            self._command(), "ps", "--all", "--filter", f"label={LABEL}={self._runs}", "--format", "{{.Names}}"
        )
        uids = {name.removeprefix(PREFIX) for name in found.split() if name.startswith(PREFIX)}
        return {uid for uid in uids if len(uid) == 36 and UID_CHARACTERS.issuperset(uid)}

    def remove(self, uids: Iterable[str]) -> None:
        """End and remove the containers of these runs. Raises EngineError."""
        for uid in uids:
            client.remove(self._command(), client.name_of(uid))

    def _command(self) -> list[str]:
        return [*unit.outside(), self._engine.path]
