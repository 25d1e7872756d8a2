"""The variables that put a program under its claim's limits; every launch method gives the same ones."""

import re
from collections.abc import Mapping

from agent.claims import group_file
from agent.claims.claim import ClaimRuntime
from agent.claims.instances import holder_of
from agent.local_wire import Environment
from agent.node import Node
from agent.settings import Library

# Docker takes a value of an environment file literally, systemd reads it as a shell would: only values that mean the
# same to both are written.
PLAIN = re.compile(r"[A-Za-z0-9_./:,@+=-]*")


class NotPlain(ValueError):
    """Path with a character that an environment file cannot carry; the message names it."""


def gpu_names(node: Node) -> Mapping[str, str]:
    """Return NVML's name of each assignment's GPU, which says whether it is a MIG instance."""
    wanted = node.desired.assignments if node.desired else ()
    return {one.uid: node.instances.device(holder_of(one)) or one.gpu_uuid for one in wanted}


def gpus(runtime: ClaimRuntime, names: Mapping[str, str]) -> list[str]:
    """Return the GPUs on which the claim may run now."""
    open_slots = [slot for slot in runtime.slots.values() if slot.is_open]
    return [names.get(slot.assignment_uid, f"GPU-{slot.gpu}") for slot in open_slots]


def mps_variables(node: Node, runtime: ClaimRuntime) -> Mapping[str, str]:
    """Return the variables by which the claim's programs find their MPS server; none without one."""
    return node.mps.variables(runtime) if node.mps is not None else {}


def variables(runtime: ClaimRuntime, library: Library, names: Mapping[str, str], mps: Mapping[str, str]) -> Environment:
    """Return the variables that `agent exec` sets, and those that it adds to the caller's lists."""
    visible = ",".join(gpus(runtime, names))
    values = {
        "GPUCLOUD_CLAIM_DIR": str(runtime.directory),
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible,
        **mps,
    }
    if (group := runtime.directory / group_file.NAME).exists():
        values["GPUCLOUD_GROUP_FILE"] = str(group)
    paths: dict[str, str] = {}
    if library.simulated_driver is not None and library.simulated_node is not None:
        values["GPUCLOUD_SIM_NODE"] = str(library.simulated_node)
        paths["LD_LIBRARY_PATH"] = str(library.simulated_driver)
    return Environment(claim=runtime.claim_uid, set=values, append={"LD_PRELOAD": str(library.path)}, prepend=paths)


def file_text(environment: Environment) -> str:
    """Return them in the form for `docker run --env-file` and systemd's `EnvironmentFile=`. Raises NotPlain."""
    values = environment.set | environment.prepend | environment.append
    for name, value in values.items():
        if not PLAIN.fullmatch(value):
            raise NotPlain(f"{name}={value} has a character that an environment file cannot carry")
    return "".join(f"{name}={value}\n" for name, value in values.items())
