"""Rules of the Container Device Interface specification (version 1.1.0 and before), to check specs against.

Runtimes refuse unknown fields, and a version that is lower than that of the fields used; so does this checker.
"""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

# The first version with each of these, by the specification's table of releases.
MOUNT_TYPE, HOST_PATH, DIGIT_NAME, ANNOTATIONS = (0, 4, 0), (0, 5, 0), (0, 5, 0), (0, 6, 0)
HOOKS = ("createRuntime", "createContainer", "startContainer", "poststart", "poststop")

AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\0]*$")]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\0]*$")]
Number = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Known(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """An object without unknown fields."""


class DeviceNode(Known):
    path: AbsolutePath
    host_path: AbsolutePath | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: Annotated[str, Meta(pattern=r"^[rwm]{0,3}$")] = "rwm"
    uid: Number | None = None
    gid: Number | None = None


class Mount(Known):
    host_path: AbsolutePath
    container_path: AbsolutePath
    type: str | None = None
    options: list[str] = []

    @property
    def writable(self) -> bool:
        """True if the last of `ro` and `rw` is `rw`, which is how OCI runtimes read options."""
        return [one for one in self.options if one in {"ro", "rw"}][-1:] != ["ro"]


class Hook(Known):
    hook_name: str
    path: AbsolutePath
    args: list[str] = []
    env: list[Variable] = []
    timeout: Annotated[int, Meta(gt=0)] | None = None


class Edits(Known):
    env: list[Variable] = []
    device_nodes: list[DeviceNode] = []
    mounts: list[Mount] = []
    hooks: list[Hook] = []


class Device(Known):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
    container_edits: Edits
    annotations: dict[str, str] = {}


class Spec(Known):
    cdi_version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
    kind: Annotated[str, Meta(pattern=r"^[a-z0-9.-]{1,253}/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
    devices: Annotated[list[Device], Meta(min_length=1)]
    container_edits: Edits = msgspec.field(default_factory=Edits)
    annotations: dict[str, str] = {}


def check(text: bytes | str | dict[str, Any]) -> Spec:
    """Return the spec if a runtime would accept it.

    Raises msgspec.ValidationError or AssertionError.
    """
    spec = msgspec.convert(text, Spec) if isinstance(text, dict) else msgspec.json.decode(text, type=Spec)
    names = [device.name for device in spec.devices]
    assert len(set(names)) == len(names), "a device's name is unique in its spec"
    version = tuple(map(int, spec.cdi_version.split(".")))
    needed = max(_needed(spec), default=(0, 3, 0))
    assert version >= needed, f"its fields need version {needed}"
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        assert all(hook.hook_name in HOOKS for hook in edits.hooks)
    return spec


def _needed(spec: Spec) -> list[tuple[int, int, int]]:
    needed = []
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        needed.append(ANNOTATIONS)
    if any(re.match(r"\d", device.name) for device in spec.devices):
        needed.append(DIGIT_NAME)
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        needed += [HOST_PATH for node in edits.device_nodes if node.host_path]
        needed += [MOUNT_TYPE for mount in edits.mounts if mount.type]
    return needed
