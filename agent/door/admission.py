"""Who may start programs under a claim, and what environment they get."""

import hashlib
import hmac
import os
from collections.abc import Mapping

import structlog

from agent import wire
from agent.door.listener import Caller
from agent.door.localwire import Environment, Refusal
from agent.holding.claim import Holding
from agent.node import Node
from agent.settings import Library

log = structlog.get_logger()


def admit(node: Node, library: Library, *, claim_uid: str, secret: str, caller: Caller) -> Environment | Refusal:
    """Register the caller under the claim and say its environment, or say why not and change nothing."""
    wanted = [one for one in node.desired.assignments if one.claim_uid == claim_uid] if node.desired else []
    if not wanted:
        return Refusal(code="unknown-claim", detail=f"Claim {claim_uid} is not on this node.")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    if not any(hmac.compare_digest(digest, one.secret_digest) for one in wanted):
        return Refusal(code="wrong-secret", detail=f"This is not the secret of claim {claim_uid}.")
    refusal = _not_in_force(node, wanted)
    if refusal is not None:
        return refusal
    if not library.path.is_file():
        # ld.so would only warn, and the program would run without limits.
        return Refusal(
            code="failed", detail=f"The library that holds programs to their limits is not at {library.path}."
        )
    holding = node.holdings[claim_uid]
    refusal = _give_page(holding, caller)
    if refusal is not None:
        return refusal
    holding.register(caller.process)
    log.info("admitted", claim=claim_uid, pid=caller.process.pid, uid=caller.uid)
    return _environment(holding, library, _names(wanted))


def is_operator(caller: Caller) -> bool:
    """True for those who may see every tenant on the node."""
    return caller.uid in (0, os.getuid())


def _not_in_force(node: Node, wanted: list[wire.Assignment]) -> Refusal | None:
    claim_uid = wanted[0].claim_uid
    present = [one for one in wanted if one.present]
    if not present:
        return Refusal(code="releasing", detail=f"Claim {claim_uid} is being released.")
    told = {one.uid: one for one in node.observed().assignments}
    for one in present:
        observation = told.get(one.uid)
        if observation is not None and observation.state == "failed":
            return Refusal(code="failed", detail=f"Claim {claim_uid} is not in force: {observation.reason}.")
        if observation is None or observation.state not in ("in_force", "over_limit"):
            return Refusal(code="not-in-force", detail=f"Claim {claim_uid} is not in force yet.")
    return None


def _give_page(holding: Holding, caller: Caller) -> Refusal | None:
    """Let the caller's user write the usage page."""
    owner = holding.owner_uid
    if caller.uid in (owner, 0):
        return None
    if os.getuid() != 0:
        words = f"This agent runs as uid {os.getuid()} and can only admit programs of that user."
        return Refusal(code="wrong-user", detail=words)
    if owner != 0 and holding.members.living():
        words = f"Programs of uid {owner} run under this claim; it takes one user at a time."
        return Refusal(code="wrong-user", detail=words)
    holding.give(caller.uid, caller.gid)
    return None


def _names(wanted: list[wire.Assignment]) -> Mapping[str, str]:
    return {one.uid: one.gpu_uuid for one in wanted}


def _environment(holding: Holding, library: Library, names: Mapping[str, str]) -> Environment:
    open_slots = [slot for slot in holding.slots.values() if slot.is_open]
    gpus = ",".join(names.get(slot.assignment_uid, f"GPU-{slot.gpu}") for slot in open_slots)
    variables = {
        "GPUCLOUD_CLAIM_DIR": str(holding.directory),
        "CUDA_VISIBLE_DEVICES": gpus,
        "NVIDIA_VISIBLE_DEVICES": gpus,
    }
    paths: dict[str, str] = {}
    if library.simulated_driver is not None and library.simulated_node is not None:
        variables["GPUCLOUD_SIM_NODE"] = str(library.simulated_node)
        paths["LD_LIBRARY_PATH"] = str(library.simulated_driver)
    return Environment(claim=holding.claim_uid, set=variables, append={"LD_PRELOAD": str(library.path)}, prepend=paths)
