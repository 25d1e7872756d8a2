"""The runtime of one claim on this node: its directory, its two pages, its processes.

The directory is the memory: the limits page holds what a killed agent had put in force, and the next agent adopts it
from there. Nothing here truncates or replaces a page that exists.
"""

import ctypes
import functools
import os
import shutil
import signal
import stat
from collections.abc import Mapping
from ctypes import c_void_p
from pathlib import Path
from uuid import UUID

from agent import wire
from agent.claims.abi import PageError, PagesLibrary
from agent.claims.groups import Groups
from agent.claims.members import Members
from agent.claims.pages import LimitSlot, LimitsPage
from agent.claims.registry import Registry
from agent.claims.turns import allotted_percent, read_memory_turn
from agent.claims.usage import Accounted, Attached, Moved, Totals, UsagePage
from agent.host import processes
from agent.host.processes import Process
from agent.logs import log

# Tenants read the limits page; only the agent writes it.
LIMITS_MODE = 0o644


@functools.lru_cache(maxsize=256)
def gpu_key(gpu_uuid: str) -> UUID:
    """Return the device's UUID from NVML's name for it ("GPU-…" or "MIG-…")."""
    return UUID(gpu_uuid.partition("-")[2])


class ClaimRuntime:
    """The runtime of one claim on this node. Raises PageError if its pages cannot be made."""

    def __init__(
        self, *, library: PagesLibrary, claims: Path, claim_uid: str, registry: Registry, groups: Groups
    ) -> None:
        self.claim_uid = claim_uid
        self.directory = claims / claim_uid
        self._registry = registry
        self._library = library
        try:
            self.directory.mkdir(mode=0o755, exist_ok=True)
            self.directory.chmod(0o755)
            self._limits = LimitsPage(library, self.directory, claim_uid)
            self._usage = UsagePage(library, self.directory)
        except OSError as error:
            raise PageError(f"cannot make {self.directory}: {error.strerror}") from error
        self._groups = groups
        self.members = Members(claim_uid, self._usage, registry, groups)
        # As on the page, by assignment.
        self.slots: dict[str, LimitSlot] = {slot.assignment_uid: slot for slot in self._limits.slots()}
        self.totals: dict[UUID, Totals] = {}
        # Of GPUs on which it may borrow memory.
        self.moved: dict[UUID, Moved] = {}
        # Processes that were ended, as they kept memory that others are promised, and are not reported yet.
        self.kept_lent: list[Process] = []
        # What the driver cannot move to host memory, at the last refresh: bits by process (agent/suspend/movable.py).
        self.unmovable: dict[Process, int] = {}
        # The memory on each GPU that each process with a slot of its own reports, at the last refresh.
        self.accounted: dict[tuple[Process, UUID], Accounted] = {}
        # The largest limit in force since the page was last read, by assignment: the most that may be in use while the
        # page cannot be read. An earlier agent may have lowered a limit before: then more than the limit that it left.
        self._most = {uid: slot.memory_bytes + 1 for uid, slot in self.slots.items()}
        # When the release of the whole claim began, by the monotonic clock; None while it is wanted.
        self.ending_since: float | None = None
        # When its processes were last searched on the whole machine, by the same clock.
        self.attributed_at: float | None = None
        self.damaged = False
        # The pages that were deleted or replaced, at the last refresh: a program that starts would find none.
        self.lost: list[str] = []
        # True if the usage page has no slot for another process.
        self.full = False

    def slots_changed(self) -> list[UUID]:
        """Return the GPUs whose slots in the limits page differ from what was written, or were never written."""
        written = {slot.gpu: slot for slot in self._limits.slots()}
        wrong = [slot.gpu for slot in self.slots.values() if written.pop(slot.gpu, None) != slot]
        # A released assignment leaves its slot closed.
        return [*wrong, *(gpu for gpu, slot in written.items() if slot.is_open)]

    def rewrite_limits(self) -> None:
        """Write the limits page again, in place: processes that map it follow at once. Raises PageError, OSError."""
        (self.directory / "limits").chmod(LIMITS_MODE)
        for gpu in set(self.slots_changed()) - {slot.gpu for slot in self.slots.values()}:
            self._limits.close_gpu(gpu, 0)
        for slot in self.slots.values():
            self._limits.set(slot)
            if not slot.is_open:
                self._limits.close_gpu(slot.gpu, slot.generation)

    def limits_fault(self) -> str | None:
        """Repair a limits page that was cut or overwritten; return what is still wrong with it."""
        if not self._limits.make_whole():
            return f"The limits page of claim {self.claim_uid} is damaged and cannot be put back."
        if self.is_open_to_others:
            return f"The limits page of claim {self.claim_uid} was given other permissions."
        return None

    def usage_fault(self) -> str | None:
        """Return what keeps programs from starting on the usage page at this moment; None if nothing does."""
        if not self._usage.is_whole:
            return f"The usage page of claim {self.claim_uid} is damaged: it was cut or written over."
        if self._usage.is_closed:
            return f"The usage page of claim {self.claim_uid} was closed to the user whom it belongs to."
        return None

    def repair_usage(self) -> None:
        """Make the usage page usable again in its place. Raises OSError; PageError while a process has it mapped."""
        if not self._usage.is_whole:
            if self.members.using_page():
                raise PageError(f"programs run on the damaged usage page of claim {self.claim_uid}")
            self._usage.make_anew()
            log.info("usage-page-made-anew", claim=self.claim_uid)
        if self._usage.is_closed:
            self._usage.open_to_owner()
        self.refresh()

    @property
    def is_open_to_others(self) -> bool:
        """True if the limits page has other permissions than it was given."""
        try:
            return stat.S_IMODE((self.directory / "limits").stat().st_mode) != LIMITS_MODE
        except OSError:
            # It is gone, which `lost` says.
            return False

    def put(self, wanted: wire.Assignment, *, suspended: bool) -> bool:
        """Write the assignment's limits to the page; return False if they were there already. Raises PageError.

        An assignment that is in force keeps its GPU: see `move`.
        """
        held = self.slots.get(wanted.uid)
        slot = LimitSlot(
            assignment_uid=wanted.uid,
            gpu=gpu_key(wanted.gpu_uuid) if held is None else held.gpu,
            is_open=True,
            generation=wanted.generation,
            memory_bytes=wanted.memory_bytes,
            core_request=wanted.core_request,
            core_limit=wanted.core_limit,
            sharing=wanted.sharing or wire.Sharing(),
            suspended=suspended,
            backend=wanted.backend,
            borrowing=wanted.borrowing,
            returning_bytes=held.returning_bytes if held is not None and suspended else None,
        )
        if held == slot:
            return False
        # Before the write: the limit that it takes back counts until a reading.
        self._most[wanted.uid] = max(self._most.get(wanted.uid, 0), wanted.memory_bytes)
        self._limits.set(slot)
        self.slots[wanted.uid] = slot
        return True

    def close(self, assignment_uid: str, generation: int | None) -> bool:
        """Refuse allocations and launches from now on; return False if they were refused already. Raises PageError."""
        slot = self.slots[assignment_uid]
        if not slot.is_open:
            return False
        closed_generation = slot.generation if generation is None else generation
        self._limits.close_gpu(slot.gpu, closed_generation)
        self.slots[assignment_uid] = slot._replace(is_open=False, generation=closed_generation)
        return True

    def move(self, assignment_uid: str, gpu: UUID) -> None:
        """Give the assignment's slot to another GPU, and that one's slot to this. None of its programs may run.

        Raises PageError.
        """
        slot = self.slots[assignment_uid]
        if slot.gpu == gpu:
            return
        self._limits.move(slot.gpu, gpu)
        if (other := self.occupant(gpu)) is not None:
            self.slots[other] = self.slots[other]._replace(gpu=slot.gpu)
        self.slots[assignment_uid] = slot._replace(gpu=gpu)
        self.refresh()

    def announce_return(self, needs: Mapping[str, int]) -> None:
        """Have borrowers give these bytes of the assignments' GPUs back, and take none; of all others, they may.

        Nothing is announced of a closed slot, which writing would open. Raises PageError.
        """
        for uid, slot in self.slots.items():
            if slot.is_open and slot.returning_bytes != needs.get(uid):
                self.slots[uid] = slot._replace(returning_bytes=needs.get(uid))
                self._limits.set(self.slots[uid])

    def lends(self, assignment_uid: str) -> bool:
        """Return whether other claims of its GPU may borrow memory there; an assignment that was forgotten has none."""
        slot = self.slots.get(assignment_uid)
        index = None if slot is None else self._limits.index(slot.gpu)
        return index is not None and read_memory_turn(self._library, self.directory, index).borrowers > 0

    def occupant(self, gpu: UUID) -> str | None:
        """Return the assignment that has this GPU's slot; None if there is none."""
        return next((uid for uid, slot in self.slots.items() if slot.gpu == gpu), None)

    def forget(self, assignment_uid: str) -> None:
        """Drop a released assignment; its closed slot waits for the next one on the same GPU."""
        del self.slots[assignment_uid]
        del self._most[assignment_uid]

    def refresh(self) -> None:
        """Read the usage page, and let the reaper clear the slots of dead processes in it."""
        self._groups.tidy()
        self.find_lost()
        # First finish earlier clearings: then this reading is without the dead.
        self._usage.reap([])
        overdue = self._read_overdue()
        self.damaged = not self._usage.read()
        self.full = False
        if self.damaged:
            # The tenant cut its own page: its last numbers stand, its registered processes are still known.
            self.accounted, self.unmovable = {}, {}
            return
        rows = self._usage.processes()
        self.full = len(rows) >= self._library.max_processes
        dead = self.members.refresh(rows)
        if dead:
            self._usage.reap(dead)
        self.accounted = {
            (process, gpu): memory
            for gpu in (slot.gpu for slot in self.slots.values())
            for row, memory in self._memory(gpu).items()
            if (process := self.members.find_attached(row)) is not None
        }
        self.totals = {slot.gpu: self._read_totals(slot.gpu) for slot in self.slots.values()}
        self._read_lent(overdue)
        self.unmovable = {
            process: bits
            for row, bits in self._usage.unmovable().items()
            if (process := self.members.find_attached(row)) is not None
        }
        self._most = {uid: slot.memory_bytes for uid, slot in self.slots.items()}

    def _read_lent(self, overdue: Mapping[UUID, int]) -> None:
        """Read what has moved on the GPUs where the claim borrows, and end the processes that keep lent memory.

        With a limit that was taken back, memory can still be out. So a GPU where something was borrowed is read until
        the assignment ends, and an agent that starts finds it by what has moved.
        """
        moved = {slot.gpu: self._read_moved(slot.gpu) for slot in self.slots.values()}
        borrowing = {slot.gpu for slot in self.slots.values() if slot.borrowing}
        self.moved = {gpu: one for gpu, one in moved.items() if gpu in borrowing | self.moved.keys() or one.moved_bytes}
        self.kept_lent += [process for gpu, order in overdue.items() for process in self._end_keepers(gpu, order)]

    def find_attached(self) -> set[Process]:
        """Return the processes that stand in the usage page now; those that have just ended are still there."""
        if not self._usage.read():
            return self.members.attached()
        # The next refresh has the dead cleared.
        dead = self.members.refresh(self._usage.processes())
        return self.members.attached() | {Process(row.pid, row.start_ticks) for row in dead}

    def indices(self) -> dict[str, int]:
        """Return the place of each assignment's GPU in the limits and usage pages."""
        found = {uid: self._limits.index(slot.gpu) for uid, slot in self.slots.items()}
        return {uid: index for uid, index in found.items() if index is not None}

    def limits_gen(self) -> int:
        """Return the number of changes of the limits page, by which programs know whether they have seen the last."""
        at = self._library.limits_gen_at
        return int.from_bytes((self.directory / "limits").read_bytes()[at : at + 4], "little")

    def make_turns(self) -> None:
        """Make the turns page if the arbiter has not: programs from another node have it mapped. Raises PageError."""
        page = c_void_p()
        result = self._library.calls.vcuda_turns_create(os.fsencode(self.directory / "turns"), ctypes.byref(page))
        if result < 0:
            raise PageError(f"cannot make {self.directory / 'turns'}: {os.strerror(-result)}")
        self._library.calls.vcuda_turns_unmap(page)

    def arrive(self, page: bytes, namespace: int, restored: list[tuple[int, int]], clock_ns: int) -> bool:
        """Go on with the usage page of another node, whose processes have these pids and start times here.

        `clock_ns`: this machine's CLOCK_MONOTONIC less that one's. None of them may run. Return False if the page is
        none.
        """
        return self._usage.arrive(page, namespace, restored, clock_ns)

    def alone_percent(self, assignment_uid: str) -> int:
        """Return the percent of its GPU that the assignment may use while nobody else wants it."""
        return self._limits.alone_percent(self.slots[assignment_uid])

    def allotted_percent(self, assignment_uid: str) -> float | None:
        """Return the percent of its GPU that the arbiter allots at present; None if no arbiter runs."""
        index = self._limits.index(self.slots[assignment_uid].gpu)
        if index is None:
            return None
        alone = self.alone_percent(assignment_uid)
        return allotted_percent(self._library, self.directory, index, alone_percent=alone)

    @property
    def reaping(self) -> bool:
        """True while the slots of dead processes are being cleared."""
        return self._usage.reaping

    def memory_bytes(self, assignment_uid: str) -> int:
        """Return the device memory in use under the assignment at the last refresh.

        For a damaged page, return the most that may be in use: a tenant must not get its memory counted as free by
        cutting its page.
        """
        read = self.totals.get(self.slots[assignment_uid].gpu, Totals()).memory_bytes
        return max(read, self._most[assignment_uid]) if self.damaged else read

    def heartbeat(self) -> None:
        """Write the agent's heartbeat to the page."""
        self._limits.heartbeat()

    def register(self, process: Process) -> None:
        """Record that the process starts under this claim."""
        # First the record for a restarted agent; then the group, so that its children are in it from the start.
        self._registry.add(self.claim_uid, process)
        self._groups.enter(process)

    def find_lost(self) -> list[str]:
        """Find the pages that are deleted or replaced at this moment."""
        pages = (("the limits page", self._limits.is_lost), ("the usage page", self._usage.is_lost))
        self.lost = [name for name, is_lost in pages if is_lost]
        return self.lost

    @property
    def owner_uid(self) -> int:
        """The user whose processes may write the usage page."""
        return self._usage.owner_uid

    def accepts(self, process: Process) -> bool:
        """Return whether to accept a process that names this claim in its environment: its user may write the page."""
        uid = processes.user(process)
        return uid is not None and self._usage.may_write(uid)

    def give(self, uid: int, gid: int) -> None:
        """Make this user the owner of the usage page. Raises OSError if the agent may not."""
        self._usage.give(uid, gid)

    def share(self) -> None:
        """Let every user write the usage page who can see it. Raises OSError if the agent may not."""
        self._usage.share()

    def end(self, *, now: float, grace_seconds: float) -> list[Process]:
        """Ask the claim's processes to end, then kill them; return those that SIGKILL reached now."""
        if self.ending_since is None:
            self.ending_since = now
        if now - self.ending_since < grace_seconds:
            self.members.ask_to_end()
            return []
        return self.members.kill()

    def remove(self) -> None:
        """Release the pages and remove the directory, since the claim has ended here."""
        self._registry.drop(self.claim_uid)
        self.abandon()

    def abandon(self) -> None:
        """Release the pages and remove the directory of a claim that continues on new pages."""
        self._limits.unmap()
        self._usage.close()
        self._groups.tidy()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _memory(self, gpu: UUID) -> dict[Attached, Accounted]:
        index = self._limits.index(gpu)
        return {} if index is None else self._usage.memory(index)

    def _read_totals(self, gpu: UUID) -> Totals:
        index = self._limits.index(gpu)
        return Totals() if index is None else self._usage.totals(index)

    def _read_moved(self, gpu: UUID) -> Moved:
        index = self._limits.index(gpu)
        return Moved() if index is None else self._usage.moved(index)

    def _read_overdue(self) -> dict[UUID, int]:
        """Return the orders that were not followed in time, by the arbiter.

        Call it before the usage page is read: else an order could be newer than what the page says of it.
        """
        gpus = {slot.gpu for slot in self.slots.values() if slot.borrowing or slot.gpu in self.moved}
        indices = {gpu: index for gpu in gpus if (index := self._limits.index(gpu)) is not None}
        found = {gpu: read_memory_turn(self._library, self.directory, index).overdue for gpu, index in indices.items()}
        return {gpu: order for gpu, order in found.items() if order}

    def _end_keepers(self, gpu: UUID, order: int) -> list[Process]:
        """End the processes that did not give lent memory back in time; return them."""
        if (index := self._limits.index(gpu)) is None:
            return []
        found = map(self.members.find_attached, self._usage.find_unfollowed(index, order))
        return [process for process in found if process is not None and processes.send(process, signal.SIGKILL)]
