"""The authorization to start programs under a claim, and the environment that they get."""

import hashlib
import hmac
import os
import time

from agent import wire
from agent.claims.claim import ClaimRuntime
from agent.claims.failures import describe_processes
from agent.host.processes import Process
from agent.launch import environment
from agent.local_api.listener import Caller
from agent.local_wire import Environment, Refusal
from agent.logs import log
from agent.node import Node
from agent.settings import Library


def admit(node: Node, library: Library, *, claim_uid: str, secret: str, caller: Caller) -> Environment | Refusal:
    """Register the caller under the claim and return its environment, or return why not and change nothing."""
    refusal = _refusal(node, library, claim_uid, secret)
    if refusal is not None:
        return refusal
    runtime = node.runtimes[claim_uid]
    if caller.uid != 0:
        # Root writes any page.
        refusal = _give_page(runtime, caller.uid, caller.gid)
    if refusal is not None:
        return refusal
    runtime.register(caller.process)
    log.info("admitted", claim=claim_uid, pid=caller.process.pid, uid=caller.uid)
    return environment.variables(
        runtime, library, environment.gpu_names(node), environment.mps_variables(node, runtime)
    )


def give_page(
    node: Node, library: Library, *, claim_uid: str, secret: str, caller: Caller, user: tuple[int, int] | None
) -> Environment | Refusal:
    """Make the caller, or as root another user, the owner of the usage page, for programs that do not call `exec`."""
    refusal = _refusal(node, library, claim_uid, secret)
    if refusal is not None:
        return refusal
    uid, gid = user or (caller.uid, caller.gid)
    if caller.uid not in (0, uid):
        return Refusal(code="not-allowed", detail=f"Only root and uid {uid} may give the claim to uid {uid}.")
    runtime = node.runtimes[claim_uid]
    refusal = _give_page(runtime, uid, gid)
    if refusal is not None:
        return refusal
    log.info("page-given", claim=claim_uid, uid=uid, by=caller.uid)
    return environment.variables(
        runtime, library, environment.gpu_names(node), environment.mps_variables(node, runtime)
    )


def find_job_obstacle(node: Node, library: Library, claim_uid: str, uid: int | None) -> Refusal | None:
    """Return why no job's program of this user may start under the claim; None if one may."""
    wanted = [one for one in node.desired.assignments if one.claim_uid == claim_uid] if node.desired else []
    if not wanted:
        return Refusal(code="unknown-claim", detail=f"Claim {claim_uid} is not on this node.")
    refusal = find_obstacle(node, library, wanted)
    return refusal or _give_page(node.runtimes[claim_uid], *((os.getuid(), os.getgid()) if uid is None else (uid, uid)))


def admit_job(
    node: Node, library: Library, *, claim_uid: str, process: Process, uid: int | None
) -> Environment | Refusal:
    """Register a job's program, which waits, under the claim and return its environment, or return why not."""
    refusal = find_job_obstacle(node, library, claim_uid, uid)
    if refusal is not None:
        return refusal
    runtime = node.runtimes[claim_uid]
    runtime.register(process)
    return environment.variables(
        runtime, library, environment.gpu_names(node), environment.mps_variables(node, runtime)
    )


def is_operator(caller: Caller) -> bool:
    """Return whether the caller may see every tenant on the node."""
    return caller.uid in (0, os.getuid())


def _refusal(node: Node, library: Library, claim_uid: str, secret: str) -> Refusal | None:
    """Return why no program may start under the claim with this secret; None if one may."""
    wanted = [one for one in node.desired.assignments if one.claim_uid == claim_uid] if node.desired else []
    if not wanted:
        return Refusal(code="unknown-claim", detail=f"Claim {claim_uid} is not on this node.")
    digest = hashlib.sha256(secret.encode()).hexdigest()
    if not any(hmac.compare_digest(digest, one.secret_digest) for one in wanted):
        return Refusal(code="wrong-secret", detail=f"This is not the secret of claim {claim_uid}.")
    return find_obstacle(node, library, wanted)


def find_obstacle(node: Node, library: Library, wanted: list[wire.Assignment]) -> Refusal | None:
    """Return why no program may start under the claim of these assignments; None if one may."""
    claim_uid = wanted[0].claim_uid
    refusal = _not_in_force(node, wanted)
    if refusal is None:
        node.repair_pages(claim_uid, now=time.monotonic())
        refusal = _not_in_force(node, wanted) or _unusable(node.runtimes[claim_uid])
    if refusal is None and node.mps is not None:
        # Without its server a program would not fail: the driver runs it without MPS.
        refusal = node.mps.obstacle(claim_uid)
    if refusal is None and not library.path.is_file():
        # ld.so would only warn, and the program would run without limits.
        words = f"The library that enforces limits is not at {library.path}."
        return Refusal(code="failed", detail=words)
    return refusal


def _unusable(runtime: ClaimRuntime) -> Refusal | None:
    """Return which of the claim's pages a program could not start on; None if it can."""
    if lost := runtime.find_lost():
        words = f"{' and '.join(lost)} of claim {runtime.claim_uid} was deleted or replaced."
    elif fault := runtime.limits_fault():
        words = f"{fault} An operator must repair it."
    elif fault := runtime.usage_fault():
        pids = [process.pid for process in runtime.members.using_page()]
        first = f"{describe_processes(pids)} must end first: then the page is made anew." if pids else ""
        words = f"{fault} {first or 'An operator must repair it.'}"
    else:
        return None
    return Refusal(code="failed", detail=words)


def _not_in_force(node: Node, wanted: list[wire.Assignment]) -> Refusal | None:
    claim_uid = wanted[0].claim_uid
    present = [one for one in wanted if one.present]
    if not present:
        return Refusal(code="releasing", detail=f"Claim {claim_uid} is being released.")
    observed = {one.uid: one for one in node.observe(claim_uid).assignments}
    for one in present:
        observation = observed.get(one.uid)
        if observation is not None and observation.state == "failed":
            return Refusal(code="failed", detail=f"Claim {claim_uid} is not in force: {observation.reason}.")
        if observation is not None and observation.state in ("suspending", "suspended", "resuming"):
            words = f"Claim {claim_uid} is {observation.state}: programs can start under it when it has been resumed."
            return Refusal(code="suspended", detail=words)
        if observation is None or observation.state not in ("in_force", "over_limit"):
            return Refusal(code="not-in-force", detail=f"Claim {claim_uid} is not in force yet.")
    return None


def _give_page(runtime: ClaimRuntime, uid: int, gid: int) -> Refusal | None:
    """Let this user write the usage page; return why not if it may not."""
    owner = runtime.owner_uid
    if uid == owner:
        return None
    if os.getuid() != 0:
        words = f"This agent runs as uid {os.getuid()} and can only admit programs of that user."
        return Refusal(code="wrong-user", detail=words)
    if owner != 0 and runtime.members.living():
        words = f"Programs of uid {owner} run under this claim; it takes one user at a time."
        return Refusal(code="wrong-user", detail=words)
    runtime.give(uid, gid)
    return None
