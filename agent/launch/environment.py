"""The variables under which a program is held to its claim's limits; every way in gives the same ones."""

import re
from collections.abc import Mapping

from agent.claims.claim import Holding
from agent.local_wire import Environment
from agent.node import Node
from agent.settings import Library

# Docker takes a value of an environment file as it stands, systemd reads it as a shell would: only what means the same
# to both is written.
PLAIN = re.compile(r"[A-Za-z0-9_./:,@+=-]*")


class NotPlain(ValueError):
    """A path has a character that an environment file cannot carry; the message names it."""


def gpu_names(node: Node) -> Mapping[str, str]:
    """NVML's name of each assignment's GPU, which says whether it is a MIG instance."""
    return {one.uid: one.gpu_uuid for one in node.desired.assignments} if node.desired else {}


def gpus(holding: Holding, names: Mapping[str, str]) -> list[str]:
    """The GPUs on which the claim may run now."""
    open_slots = [slot for slot in holding.slots.values() if slot.is_open]
    return [names.get(slot.assignment_uid, f"GPU-{slot.gpu}") for slot in open_slots]


def variables(holding: Holding, library: Library, names: Mapping[str, str]) -> Environment:
    """What `agent exec` sets, and what it adds to the lists that the caller has."""
    visible = ",".join(gpus(holding, names))
    told = {
        "GPUCLOUD_CLAIM_DIR": str(holding.directory),
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible,
    }
    paths: dict[str, str] = {}
    if library.simulated_driver is not None and library.simulated_node is not None:
        told["GPUCLOUD_SIM_NODE"] = str(library.simulated_node)
        paths["LD_LIBRARY_PATH"] = str(library.simulated_driver)
    return Environment(claim=holding.claim_uid, set=told, append={"LD_PRELOAD": str(library.path)}, prepend=paths)


def file_text(environment: Environment) -> str:
    """The same for `docker run --env-file` and systemd's `EnvironmentFile=`. Raises NotPlain."""
    told = environment.set | environment.prepend | environment.append
    for name, value in told.items():
        if not PLAIN.fullmatch(value):
            raise NotPlain(f"{name}={value} has a character that an environment file cannot carry")
    return "".join(f"{name}={value}\n" for name, value in told.items())
