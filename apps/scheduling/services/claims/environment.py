"""The environment of a process under a claim."""

import shlex
from typing import Any

from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.claims.desired import claim_secret
from apps.scheduling.services.claims.launch_methods import agent_command, launch_methods
from apps.scheduling.services.claims.lifecycle import WrongState


def claim_environment(*, principal: Principal, claim: Claim) -> dict[str, Any]:
    """Return node, socket, secret and variables. Raises WrongState before the claim is placed, RoleMissing."""
    principal.require_role(claim.tenant, "member")
    live = (item for item in claim.assignments.all() if item.state != "released")
    assignments = [item for item in live if item.counterpart_id is None]
    if claim.state not in PLACED or not assignments:
        raise WrongState(f"The claim is {claim.state}: it has no GPU to run on.", state=claim.state)
    node = assignments[0].gpu.node
    socket = f"{node.run_dir}/agent.sock"
    secret = claim_secret(claim.uid)
    return {
        "claim": claim.uid,
        "node": node.name,
        "agent_socket": socket,
        "secret": secret,
        "env": {
            "GPUCLOUD_CLAIM": str(claim.uid),
            "GPUCLOUD_CLAIM_SECRET": secret,
            "GPUCLOUD_AGENT_SOCKET": socket,
            "LD_PRELOAD": node.library,
            "NVIDIA_VISIBLE_DEVICES": ",".join(item.gpu.uuid for item in assignments),
        },
        "command": f"{agent_command(node)} exec {claim.uid} -- COMMAND",
        "ways": launch_methods(claim),
    }


def shell_lines(facts: dict[str, Any]) -> str:
    """Return `export` lines for a shell: what `agent exec` needs, but nothing that preloads the library there."""
    names = ("GPUCLOUD_CLAIM", "GPUCLOUD_CLAIM_SECRET", "GPUCLOUD_AGENT_SOCKET")
    return "".join(f"export {name}={shlex.quote(facts['env'][name])}\n" for name in names)
