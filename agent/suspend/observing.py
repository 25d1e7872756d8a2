"""The observation of one assignment, as the server gets it."""

import msgspec

from agent import wire
from agent.claims.claim import ClaimRuntime
from agent.claims.pages import LimitSlot
from agent.suspend.records import Suspension, Suspensions


def is_over(runtime: ClaimRuntime, slot: LimitSlot) -> bool:
    """Return whether more memory is in use under the assignment than its limit."""
    return runtime.memory_bytes(slot.assignment_uid) > slot.memory_bytes


def observe(runtime: ClaimRuntime, slot: LimitSlot, suspensions: Suspensions) -> wire.Observation:
    """Return what is in force of the assignment."""
    if not slot.is_open or runtime.ending_since is not None:
        return _observe_ending(runtime, slot)
    record = suspensions.claims.get(runtime.claim_uid)
    seen = _observe_open(runtime, slot) if record is None else _observe_held(runtime, slot, record)
    if (ticket := suspensions.tickets.get(runtime.claim_uid)) is not None and seen.state == "suspended":
        seen = msgspec.structs.replace(seen, ticket=ticket)
    if (words := suspensions.refusal(runtime.claim_uid)) is not None:
        seen = msgspec.structs.replace(seen, suspend_refused=words)
    return seen


def _observe_ending(runtime: ClaimRuntime, slot: LimitSlot) -> wire.Observation:
    left = runtime.members.living()
    named = ", ".join(str(process.pid) for process in left[:8])
    return wire.Observation(
        uid=slot.assignment_uid,
        generation=slot.generation,
        state="releasing",
        reason=f"{len(left)} process(es) left: {named}" if left else None,
        memory_bytes=runtime.memory_bytes(slot.assignment_uid),
    )


def _observe_held(runtime: ClaimRuntime, slot: LimitSlot, record: Suspension) -> wire.Observation:
    """Return what is in force of a claim whose programs are not simply running."""
    saved, used = record.saved.get(slot.assignment_uid, 0), runtime.memory_bytes(slot.assignment_uid)
    # What comes back will be in use: it counts from the moment when the first process may take it.
    memory = {"suspending": used, "suspended": 0, "resuming": max(used, saved)}[record.phase]
    seen = wire.Observation(
        uid=slot.assignment_uid, generation=slot.generation, state=record.phase, memory_bytes=memory
    )
    return seen if record.phase == "suspending" else msgspec.structs.replace(seen, saved_bytes=saved)


def _observe_open(runtime: ClaimRuntime, slot: LimitSlot) -> wire.Observation:
    used = runtime.memory_bytes(slot.assignment_uid)
    state: wire.AssignmentState = "in_force"
    reason = None
    if is_over(runtime, slot):
        state = "over_limit"
        reason = (
            f"the usage page is damaged: up to {used} bytes may be in use, and the limit is {slot.memory_bytes}"
            if runtime.damaged
            else f"{used} bytes in use, {used - slot.memory_bytes} over the limit of {slot.memory_bytes}"
        )
    return wire.Observation(
        uid=slot.assignment_uid, generation=slot.generation, state=state, reason=reason, memory_bytes=used
    )
