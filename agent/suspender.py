"""The loop that suspends and resumes claims, until each is as the server wants it.

Of each claim that is not as wanted, one task at a time:

1. Suspending: see whether anything speaks against it. The limits page says already that the claim is suspended.
2. Wait until its processes have read that, and see that the driver can move all they have; thaw its control groups,
   since the driver's calls need living threads.
3. Give the order to a helper: all processes are suspended, or all go on.
4. See that none of the claim's processes is left on a GPU by NVML; freeze the control groups.

Resuming: the limit must have room for what was saved; thaw, give the order, and the page says that the claim runs. On
other GPUs than before: the journal says first where each process is, then the page's slots move.

A helper that died is started again; an agent that was killed goes on from the journal, and asks the driver. A process
that a hanging call keeps is asked again and again; no process is ever killed for it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from msgspec import UNSET, UnsetType

from agent import settings, wire
from agent.carrying import trial
from agent.carrying.carrier import Carrier, Sending
from agent.claims.attribution import ProcessInfo
from agent.claims.claim import ClaimRuntime, gpu_key
from agent.claims.failures import describe_processes
from agent.host import processes
from agent.host.gpus import Nvml
from agent.host.processes import Process
from agent.host.sampling import pause
from agent.logs import log
from agent.node import Node
from agent.suspend import moving
from agent.suspend.calls import Calls, Outcome
from agent.suspend.ending import end_programs
from agent.suspend.movable import find_unmovable
from agent.suspend.records import Suspension, Wish
from agent.suspend.room import InThread, end_return, find_lack, find_left, find_no_room

LOOK_SECONDS = 0.5
# libvcuda's watcher is woken at once; a busy machine may take a while.
ECHO_SECONDS = 0.5
CARRIED_ECHO_SECONDS = 10.0  # programs from another node find this machine's clock by it
RETRY_SECONDS = 5.0
HELPERS = 3
# As the driver numbers the states of a process.
LOCKED = 1
MIB = 1 << 20
TOO_OLD = "This node's driver cannot suspend processes: it needs driver 570 or later."


class Suspender:
    """The tasks of one node's claims. `report` gets events; `changed` is set when an observation changed."""

    def __init__(
        self,
        node: Node,
        chosen: settings.Settings,
        nvml: tuple[Nvml, InThread],
        report: Callable[[str, str], None],
        changed: asyncio.Event,
    ) -> None:
        self._node = node
        self._settings = chosen
        simulated = chosen.library.simulated_driver
        self._is_simulated = simulated is not None
        self._calls = Calls(simulated / "libcuda.so.1" if simulated else None, patience_seconds=chosen.suspend_seconds)
        self._nvml, self._in_nvml_thread = nvml
        self._report = report
        self._changed = changed
        # The CUDA version of the driver, 0 if it cannot suspend; None: not asked yet.
        self._cuda: int | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._carrier = Carrier(node, chosen)
        self.check_now = asyncio.Event()

    async def is_able(self) -> bool:
        """Return whether the machine can suspend claims: asked once, as a new driver needs a new start of programs."""
        return (await self._machine()).cuda > 0

    async def can_move(self) -> bool:
        """Return whether the machine can resume claims on other GPUs than theirs."""
        return moving.find_hindrance(await self._machine()) is None

    async def can_carry(self) -> bool:
        """Return whether running programs can be carried to and from the machine, by a trial."""
        return await self.is_able() and await asyncio.to_thread(trial.find_hindrance, self._settings) is None

    async def _machine(self) -> moving.Machine:
        if self._cuda is None:
            self._cuda = await self._calls.find_cuda()
        # A simulated GPU has no device file.
        latest = self._nvml.latest
        return moving.Machine(latest._replace(minors={}) if self._is_simulated else latest, self._cuda)

    async def offer_bytes(self) -> int | UnsetType:
        """Return the host memory that suspended claims may take; unset if the machine can suspend none."""
        return self._settings.host_memory_bytes if await self.is_able() else UNSET

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                self._start_tasks()
                await pause(self.check_now, LOOK_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _start_tasks(self) -> None:
        records = self._node.suspensions
        for claim_uid in list(records.claims):
            runtime, task = self._node.runtimes.get(claim_uid), self._tasks.get(claim_uid)
            if runtime is None and self._node.desired is not None:
                records.forget(claim_uid)
                self._carrier.forget(claim_uid)
            if runtime is None or runtime.ending_since is not None:
                self._let_end(runtime, task)
            elif task is None or task.done():
                if task is not None and not task.cancelled() and task.exception() is not None:
                    log.error("suspension-broken", claim=claim_uid, reason=repr(task.exception()))
                if (work := self._work(runtime, records.claims[claim_uid])) is not None:
                    self._tasks[claim_uid] = asyncio.ensure_future(work)

    def _let_end(self, runtime: ClaimRuntime | None, task: asyncio.Task[None] | None) -> None:
        """Let the programs of an ending claim run, as far as they can: they are asked to end."""
        if task is not None:
            task.cancel()
        if runtime is not None:
            runtime.members.thaw()
            if self._node.suspensions.claims[runtime.claim_uid].is_dumped:
                # They run on another node by now, or nowhere.
                runtime.members.kill()

    def _work(self, runtime: ClaimRuntime, record: Suspension) -> Awaitable[None] | None:
        """Return what is to be done about the claim now; None if nothing is."""
        records, claim_uid = self._node.suspensions, runtime.claim_uid
        wish = records.wishes.get(claim_uid)
        if wish is None:
            return None
        if record.phase == "resuming" or (not wish.suspended and not record.is_checked):
            return end_return(runtime, self._resume(runtime, record, wish))
        if record.phase == "suspending":
            return self._suspend(runtime, record, wish)
        if not record.is_checked or runtime.members.attached() - record.processes:
            return self._check(runtime, record, wish)
        if not wish.suspended and records.refusal(claim_uid) is None:
            record.phase = "resuming"
            return end_return(runtime, self._resume(runtime, record, wish))
        return None

    async def _check(self, runtime: ClaimRuntime, record: Suspension, wish: Wish) -> None:
        """Ask the processes of a claim that an earlier agent left suspended, and suspend those that are not."""
        everyone = record.processes | runtime.members.attached()
        if record.is_dumped and record.phase == "suspended":
            # They were observed so before they were sent to another node, and may run there by now.
            runtime.members.freeze()
            self._node.suspensions.note_suspended(runtime.claim_uid, everyone)
            self._tell_changed()
            return
        runtime.members.thaw()
        outcome = await self._keep(everyone, record)
        if outcome.result == "suspended":
            runtime.members.freeze()
            self._node.suspensions.note_suspended(runtime.claim_uid, everyone)
        else:
            self._node.suspensions.refuse(runtime.claim_uid, wish, outcome.reason)
            await asyncio.sleep(RETRY_SECONDS)
        self._tell_changed()

    async def _keep(self, everyone: set[Process], record: Suspension) -> Outcome:
        if not everyone:
            return Outcome("suspended", "", {})
        return await self._calls.carry_out("keep", everyone, record.saved_bytes)

    def _attribute(self, runtime: ClaimRuntime, seen: list[ProcessInfo]) -> None:
        self._node.set_attributed([runtime], seen, now=None)

    async def _end(self, runtime: ClaimRuntime, record: Suspension, wish: Wish) -> None:
        """Let the claim's programs end, and keep new ones from the GPU from then on."""
        while True:
            record.lets_end = True
            killed = await end_programs(
                runtime, self._attribute, save_seconds=wish.end_seconds, grace_seconds=self._settings.grace_seconds
            )
            if killed:
                words = f"{describe_processes(killed)} of claim {runtime.claim_uid} did not end in its time"
                self._report("process-killed", f"{words} and got SIGKILL.")
            record.lets_end = False
            self._node.step(now=time.monotonic())
            runtime.refresh()
            if not runtime.members.any_left:
                self._node.suspensions.note_suspended(runtime.claim_uid, set())
                return self._tell_changed()

    async def _suspend(self, runtime: ClaimRuntime, record: Suspension, wish: Wish) -> None:
        if wish.end_seconds:
            return await self._end(runtime, record, wish)
        self._carrier.wake(runtime, record)
        words = None if record.saved else await self._find_obstacle(runtime)
        if words is not None:
            return self._refuse(runtime, wish, words)
        await self._wait_for_echo(runtime)
        if not record.saved and (words := await self._find_unmovable(runtime)) is not None:
            return self._refuse(runtime, wish, words)
        runtime.members.thaw()
        outcome, left = Outcome("died", "", {}), None
        for _ in range(HELPERS):
            runtime.refresh()
            # The most that was seen: of a process that is saved already, the account is empty.
            record.saved = {uid: max(runtime.memory_bytes(uid), record.saved.get(uid, 0)) for uid in runtime.slots}
            record.processes = runtime.members.attached()
            self._node.suspensions.store()
            outcome = await self._calls.carry_out("suspend", record.processes, record.saved_bytes)
            left = (
                await find_left(runtime, record, self._nvml, self._in_nvml_thread)
                if outcome.result == "suspended"
                else None
            )
            if outcome.result == "suspended" and left is None:
                if (left := await self._settle(runtime, record, wish.carry)) is None:
                    return self._tell_changed()
                break
            if outcome.result not in ("died", "suspended"):
                break
        return await self._undo(runtime, record, wish, outcome, left or outcome.reason)

    async def _settle(self, runtime: ClaimRuntime, record: Suspension, carry: wire.Carry | None) -> str | None:
        """Record that the claim is suspended, after its carry if one is wanted; return why that failed, or None."""
        words = None
        if carry is not None and carry.ticket is None:
            words = self._carrier.offer(runtime.claim_uid)
        elif carry is not None and carry.ticket is not None:
            sending = Sending(carry.ticket, {uid: self._name(slot.gpu) for uid, slot in runtime.slots.items()})
            words = await self._carrier.send(runtime, record, sending, (await self._machine()).inventory)
        return words or self._carrier.note_suspended(runtime, record)

    async def _undo(self, runtime: ClaimRuntime, record: Suspension, wish: Wish, outcome: Outcome, words: str) -> None:
        """Let all of the claim's programs go on after a suspension that failed, however long that takes."""
        self._node.suspensions.refuse(runtime.claim_uid, wish, words)
        record.phase = "resuming"
        self._node.suspensions.store()
        self._tell_changed()
        while outcome.result not in ("running", "unable"):
            outcome = await self._calls.carry_out("release", runtime.members.attached(), record.saved_bytes)
            if outcome.result in ("hung", "mixed"):
                await asyncio.sleep(RETRY_SECONDS)
        return self._finish(runtime)

    async def _resume(self, runtime: ClaimRuntime, record: Suspension, wish: Wish) -> None:
        if (words := await self._bring(runtime, record, wish)) is not None:
            return self._stay_suspended(runtime, record, wish, words)
        page = {uid: self._name(slot.gpu) for uid, slot in runtime.slots.items()}
        targets = page if wish.suspended else {uid: dict(wish.gpus).get(uid, gpu) for uid, gpu in page.items()}
        homes = record.find_homes(page)
        words = await self._find_reason_to_stay(runtime, record, wish, (homes, page, targets))
        if words is not None:
            return self._stay_suspended(runtime, record, wish, words)
        if targets != page:
            record.homes = homes
            self._change_gpus(runtime, targets)
        runtime.members.thaw()
        while everyone := record.processes | runtime.members.attached():
            moved = {one: gpus for one, gpus in record.homes.items() if processes.alive(one)}
            inventory = (await self._machine()).inventory
            maps = {**moving.find_maps(moved, targets, inventory)[0], **self._carrier.find_maps(runtime, inventory)[0]}
            outcome = await self._calls.carry_out("resume", everyone, record.saved_bytes, maps=maps)
            if outcome.result == "halted":
                outcome = await self._gather(record, targets, outcome)
            if outcome.result in ("running", "unable"):
                if outcome.reason:
                    self._report("suspend-failed", f"Claim {runtime.claim_uid} runs again, and {outcome.reason}")
                return self._finish(runtime)
            if outcome.result == "suspended":
                runtime.members.freeze()
                return self._stay_suspended(runtime, record, wish, outcome.reason)
            if outcome.result in ("hung", "mixed"):
                self._node.suspensions.refuse(runtime.claim_uid, wish, outcome.reason)
                self._tell_changed()
                await asyncio.sleep(RETRY_SECONDS)
        return self._finish(runtime)

    def _change_gpus(self, runtime: ClaimRuntime, targets: moving.Places) -> None:
        """Give the claim's slots to other GPUs, once the journal says where its processes are."""
        self._node.suspensions.store()
        for uid, gpu in targets.items():
            runtime.move(uid, gpu_key(gpu))

    async def _bring(self, runtime: ClaimRuntime, record: Suspension, wish: Wish) -> str | None:
        """Have programs of another node, or that were to leave for one, go on; return why they cannot."""
        if wish.carry is not None and wish.carry.ticket is None and not wish.suspended:
            if (words := await self._carrier.bring(runtime, record)) is not None:
                return words
            await self._wait_for_echo(runtime, CARRIED_ECHO_SECONDS)
        self._carrier.wake(runtime, record)
        return None

    async def _find_reason_to_stay(
        self,
        runtime: ClaimRuntime,
        record: Suspension,
        wish: Wish,
        places: tuple[Mapping[Process, moving.Places], moving.Places, moving.Places],
    ) -> str | None:
        """Return why suspended programs cannot come back to these places; None if they can."""
        words = None if wish.suspended else find_lack(runtime, record)
        words = words or self._carrier.find_maps(runtime, (await self._machine()).inventory)[1]
        words = words or await self._refuse_move(*places)
        return words or await find_no_room(runtime, places[2], record, self._nvml, self._in_nvml_thread)

    async def _gather(self, record: Suspension, targets: moving.Places, halted: Outcome) -> Outcome:
        """Suspend again the processes that are on their new GPUs already, since others could not be brought there."""
        there = {one for one in record.processes if halted.states.get(one.pid) == LOCKED}
        record.homes |= {one: dict(targets) for one in there}
        self._node.suspensions.store()
        outcome = await self._calls.carry_out("keep", record.processes, record.saved_bytes)
        return outcome._replace(reason=f"{halted.reason} {outcome.reason}".strip())

    def _stay_suspended(self, runtime: ClaimRuntime, record: Suspension, wish: Wish, words: str) -> None:
        self._node.suspensions.refuse(runtime.claim_uid, wish, words)
        self._node.suspensions.note_suspended(runtime.claim_uid, record.processes)
        self._tell_changed()

    async def _refuse_move(
        self, homes: Mapping[Process, moving.Places], page: moving.Places, targets: moving.Places
    ) -> str | None:
        """Return why the claim cannot go on on the GPUs on which it is wanted; None if it can."""
        if targets == page and all(home == targets for home in homes.values()):
            return None
        machine = await self._machine()
        words = moving.refuse_places(machine, [page, *homes.values()], targets)
        return words or moving.find_maps(homes, targets, machine.inventory)[1]

    def _name(self, gpu: UUID) -> str:
        """Return NVML's name of a GPU, which says whether it is a MIG device."""
        names = {gpu_key(one.uuid): one.uuid for one in self._nvml.latest.gpus}
        return names.get(gpu, f"GPU-{gpu}")

    def _finish(self, runtime: ClaimRuntime) -> None:
        self._node.suspensions.note_running(runtime.claim_uid)
        self._carrier.forget(runtime.claim_uid)
        self._node.step(now=time.monotonic())
        self._tell_changed()

    def _refuse(self, runtime: ClaimRuntime, wish: Wish, words: str) -> None:
        self._node.suspensions.refuse(runtime.claim_uid, wish, words)
        self._finish(runtime)

    def _tell_changed(self) -> None:
        self._changed.set()
        self.check_now.set()

    async def _find_obstacle(self, runtime: ClaimRuntime) -> str | None:
        """Return why the claim cannot be suspended, as far as that is known beforehand; None if nothing is known."""
        if not await self.is_able():
            return TOO_OLD
        stopped = sorted(one.pid for one in runtime.members.attached() if processes.is_stopped(one))
        if stopped:
            return f"Process(es) {stopped} are stopped (SIGSTOP): continue or end them first."
        if runtime.damaged:
            return "The claim's usage page is damaged: which processes use its GPUs is not known."
        need = sum(runtime.memory_bytes(uid) for uid in runtime.slots)
        taken, budget = self._node.suspensions.host_bytes(), self._settings.host_memory_bytes
        if taken + need > budget:
            return (
                f"Suspended claims of this node take {taken // MIB} of {budget // MIB} MiB of host memory, and "
                f"this one needs {need // MIB}: resume or release others, or raise GPUCLOUD_SUSPEND_MEMORY_MIB."
            )
        available = settings.available_mib()
        if need // MIB > available:
            return f"It needs {need // MIB} MiB of host memory, of which this machine has {available} left."
        return None

    async def _find_unmovable(self, runtime: ClaimRuntime) -> str | None:
        others = [one for one in self._node.runtimes.values() if one is not runtime]
        on_gpus = {one.pid for one in await self._in_nvml_thread(self._nvml.processes)}
        clients = await self._in_nvml_thread(self._nvml.mps_clients)
        for one in (runtime, *others):
            one.refresh()
        return find_unmovable(runtime, others, on_gpus=on_gpus, mps_clients=clients)

    async def _wait_for_echo(self, runtime: ClaimRuntime, seconds: float = ECHO_SECONDS) -> None:
        """Wait until all of its processes have read that the claim is suspended; not for long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runtime.refresh()
            seen = [runtime.totals[slot.gpu].observed_generation for slot in runtime.slots.values()]
            if all(
                one is None or one >= slot.generation for one, slot in zip(seen, runtime.slots.values(), strict=True)
            ):
                return
            await asyncio.sleep(ECHO_SECONDS / 20)
