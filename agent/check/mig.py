"""Check of GPUs in MIG mode: whether the agent can divide them."""

import msgspec

from agent.check.finding import ok, warning
from agent.host.gpus import Inventory
from agent.wire import Check

NAME = "mig"


def mig(inventory: Inventory) -> Check:
    """Check whether instances can be made on every GPU in MIG mode, and name what others made there."""
    divided = {gpu.index: gpu.mig for gpu in inventory.gpus if gpu.mig is not msgspec.UNSET}
    closed = sorted(index for index, facts in divided.items() if not facts.profiles)
    if closed:
        return warning(
            NAME,
            f"GPU {', '.join(map(str, closed))} in MIG mode, but this agent may not make instances: no claims go there",
            "Run the agent as root, with driver 525 or newer; or leave MIG mode: nvidia-smi -i GPU -mig 0.",
        )
    foreign = sum(len(facts.foreign) for facts in divided.values())
    kept = f"; {foreign} instances that others made are left alone" if foreign else ""
    return ok(NAME, f"GPU {', '.join(map(str, sorted(divided)))} in MIG mode, for claims with hard isolation{kept}")
