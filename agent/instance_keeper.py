"""The loop that makes and removes MIG instances: one for each assignment that is wanted on a GPU in MIG mode.

Each step may be the last of this agent. 1. The record is written. 2. The GPU instance is made, 3. its compute instance,
4. and the record is completed; only then does the assignment's page name the device. At the end no program is left
before 5. the compute instance is removed, 6. the GPU instance, 7. and the record. Only then is the assignment released.
The next agent finds the record and goes on from what the driver says is there. An instance that no record names is
never touched, and one in which programs run is never removed. One that somebody else removed is made again.

In a pool with static instances an assignment gets one that an operator made: then only the record comes and goes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pynvml as nvml
from msgspec import UNSET, structs

from agent import wire
from agent.claims.instances import InstanceRecord, holder_of
from agent.host import mig
from agent.host.gpus import Nvml
from agent.host.sampling import pause
from agent.logs import log
from agent.node import Node

T = TypeVar("T")

# Something is to be made or removed that could not be: a program that does not end, a foreign instance in the way.
RETRY_SECONDS = 0.5
# Modes and instances that others change on the machine are noticed after this time.
STEADY_SECONDS = 10.0


class News(NamedTuple):
    """Calls after something has happened."""

    # An instance was made or removed, or could not be: with the time.
    changed: Callable[[float], None]
    # A GPU's mode was changed, or foreign instances came or went.
    renew: Callable[[], Awaitable[None]]
    # An event for the server: its code, and words.
    report: Callable[[str, str], None]


class InstanceKeeper:
    """Makes the instances of a node as its desired state wants them."""

    def __init__(
        self,
        node: Node,
        nvml_: Nvml,
        in_nvml_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        news: News,
    ) -> None:
        self._node, self._nvml, self._in_nvml_thread = node, nvml_, in_nvml_thread
        self._news = news
        self.check_now = asyncio.Event()
        self._renewed_for: object = None
        self._verified_at = float("-inf")
        # What was to be done when it was last looked for.
        self._seen: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    def check(self) -> None:
        """Look at once if anything new is to be made or removed."""
        to_make, to_remove = self._find_work()
        found = frozenset(one.uid for one in to_make), frozenset(one.assignment_uid for one in to_remove)
        if found != self._seen:
            self._seen = found
            self.check_now.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            is_done = await self.step()
            await self._watch_gpus()
            await pause(self.check_now, STEADY_SECONDS if is_done else RETRY_SECONDS)

    async def step(self) -> bool:
        """Remove what is not wanted, then make what is; return True if nothing is left to do."""
        is_done = True
        if time.monotonic() - self._verified_at >= STEADY_SECONDS:
            await self._verify()
        for record in self._find_work()[1]:
            is_done &= await self._remove(record)
        for wanted in self._find_work()[0]:
            is_done &= await self._make(wanted)
        self._forget_problems()
        return is_done

    def _forget_problems(self) -> None:
        """Forget what was wrong with instances that nobody needs any more."""
        to_make, to_remove = self._find_work()
        needed = {one.uid for one in to_make} | {one.assignment_uid for one in to_remove}
        problems = self._node.instances.problems
        for uid in problems.keys() - needed:
            del problems[uid]

    def _find_work(self) -> tuple[list[wire.Assignment], list[InstanceRecord]]:
        """Return the assignments that lack their instance, and the instances that no assignment needs.

        Before the first desired state nothing is known to be needless.
        """
        desired, instances = self._node.desired, self._node.instances
        if desired is None:
            return [], []
        present = [one for one in desired.assignments if one.present and one.mig is not None]
        needed = {holder_of(one) for one in present}
        # What a page still names has programs, or may get some: those of the claim itself, or of others in it.
        slots = [slot for runtime in self._node.runtimes.values() for slot in runtime.slots.values()]
        needed |= {slot.assignment_uid for slot in slots} | instances.find_holders({slot.gpu for slot in slots})
        wanted = [one for one in present if holder_of(one) == one.uid]
        to_make = [one for one in wanted if instances.device(one.uid) is None]
        return to_make, [record for uid, record in instances.records.items() if uid not in needed]

    async def _verify(self) -> None:
        """Begin anew with the instances that somebody else removed; programs in them have lost their GPU anyway."""
        instances = self._node.instances
        for record in [one for one in instances.records.values() if one.phase == "made"]:
            if (handle := self._nvml.handles.get(record.gpu_uuid)) is None:
                continue
            try:
                found = await self._in_nvml_thread(partial(mig.find_device, handle, record.place))
                if found is None or found.device != record.device:
                    instances.put(structs.replace(record, phase="making", device=""))
                    words = f"The MIG instance of assignment {record.assignment_uid} on {record.gpu_uuid} was removed"
                    then = "It was prepared by an operator." if record.prepared else "It is made again."
                    self._news.report("instance-gone", f"{words} by somebody else: {record.device}. {then}")
            except (nvml.NVMLError, OSError) as error:
                log.warning("instance-not-verified", device=record.device, reason=str(error))
        self._verified_at = time.monotonic()

    async def _make(self, wanted: wire.Assignment) -> bool:
        assert wanted.mig is not None
        instances, place, handle = self._node.instances, wanted.mig, self._nvml.handles.get(wanted.gpu_uuid)
        if handle is None:
            return self._fail(wanted.uid, f"{wanted.gpu_uuid} is not on this node, or does not answer")
        begun = instances.records.get(wanted.uid)
        record = begun or InstanceRecord(
            assignment_uid=wanted.uid, gpu_uuid=wanted.gpu_uuid, place=place, prepared=wanted.prepared
        )
        try:
            if begun is None:
                instances.put(record)
            if record.prepared:
                made = await self._in_nvml_thread(partial(mig.use, handle, place))
            else:
                made = await self._in_nvml_thread(partial(mig.make, handle, place, may_exist=begun is not None))
            device, gpu_instance, compute_instance = made
            instances.put(
                structs.replace(
                    record,
                    phase="made",
                    device=device,
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                )
            )
        except nvml.NVMLError as error:
            # Nothing was made of an instance for which there is no room. Of any other, the record stays.
            if begun is None and isinstance(error, nvml.NVMLError_InsufficientResources):
                instances.drop(wanted.uid)
            return self._fail(wanted.uid, _explain(error, place, wanted.gpu_uuid))
        except (mig.NotOurs, OSError) as error:
            if record.prepared:
                instances.drop(wanted.uid)
            return self._fail(wanted.uid, f"no MIG instance of {place.profile} on {wanted.gpu_uuid}: {error}")
        event = "instance-used" if record.prepared else "instance-made"
        log.info(event, assignment=wanted.uid, device=device, profile=place.profile, start=place.start)
        self._forget_problems()
        self._report()
        return True

    async def _remove(self, record: InstanceRecord) -> bool:
        uid, handle = record.assignment_uid, self._nvml.handles.get(record.gpu_uuid)
        if handle is None:
            return self._fail(uid, f"{record.gpu_uuid} does not answer, so its MIG instance cannot be removed")
        try:
            there = not record.prepared and await self._in_nvml_thread(
                lambda: mig.is_enabled(handle) and mig.remove(handle, record.place)
            )
            self._node.instances.drop(uid)
        except nvml.NVMLError as error:
            return self._fail(uid, f"its MIG instance cannot be removed from {record.gpu_uuid}: {error}")
        except (mig.NotOurs, OSError) as error:
            return self._fail(uid, f"its MIG instance cannot be removed from {record.gpu_uuid}: {error}")
        log.info("instance-removed", assignment=uid, device=record.device, was_there=there)
        self._report()
        return True

    def _report(self) -> None:
        """Put assignments in force whose instances were made, and report those whose were removed."""
        now = time.monotonic()
        self._node.step(now=now)
        self._news.changed(now)

    def _fail(self, assignment_uid: str, words: str) -> bool:
        if self._node.instances.problems.get(assignment_uid) != words:
            log.warning("instance-not-as-wanted", assignment=assignment_uid, reason=words)
            self._node.instances.problems[assignment_uid] = words
            self._report()
        return False

    async def _watch_gpus(self) -> None:
        """Send the server the GPUs anew if their mode or their foreign instances differ from what it was told."""
        told = {gpu.uuid: gpu.mig for gpu in self._nvml.latest.gpus}
        handles, own = dict(self._nvml.handles), self._node.instances.own()
        found = await self._in_nvml_thread(
            lambda: {
                uuid: mig.describe(handle, frozenset(start for gpu, start in own if gpu == uuid)) or UNSET
                for uuid, handle in handles.items()
            }
        )
        # Once for each change: the hello may take a while.
        if any(told.get(uuid, facts) != facts for uuid, facts in found.items()) and found != self._renewed_for:
            self._renewed_for = found
            await self._news.renew()


def _explain(error: nvml.NVMLError, place: wire.MigPlace, gpu_uuid: str) -> str:
    where = f"a MIG instance of {place.profile} at slice {place.start} of {gpu_uuid}"
    if isinstance(error, nvml.NVMLError_InsufficientResources):
        return f"no room for {where}: an instance that this agent did not make is in its place"
    if isinstance(error, nvml.NVMLError_NotSupported):
        return f"cannot make {where}: the GPU is not in MIG mode"
    if isinstance(error, nvml.NVMLError_NoPermission):
        return f"cannot make {where}: the agent must run as root"
    return f"cannot make {where}: {error}"
