"""The two halves of a carrying: the old node dumps and sends programs, the new one takes and restores them.

The server says which of the two nodes may run them (docs/decisions/0095), so neither half asks the other.

The old node, once the driver has moved all GPU memory into the processes:

1. CRIU dumps them and leaves them stopped; the journal has said before that they may be.
2. Images and usage page go to the new node, which confirms the checksum. Only then is the claim suspended here.
3. The server releases the claim here, and they are killed; or wants it back, and they go on from where they stopped.

The new node: it offers a ticket while the claim is shut, and keeps what came. When the server wants it in force:

1. See whose the images are, and give that user the usage page.
2. CRIU restores them, stopped, in new namespaces and the claim's control group.
3. The usage page goes on with their new names and this machine's clock; `restored.json` says that they are here.
4. They continue, see their new limits, and are resumed like every suspended claim.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent import statefile, wire
from agent.carrying import criu, images, programs, transfer
from agent.carrying.images import Meta, Refused
from agent.carrying.transfer import ARRIVED, Receiver
from agent.claims.abi import PageError
from agent.claims.claim import ClaimRuntime, gpu_key
from agent.host import processes
from agent.host.gpus import Inventory
from agent.host.processes import Process
from agent.logs import log
from agent.node import Node
from agent.settings import Settings
from agent.suspend import moving
from agent.suspend.records import Suspension

RESTORED = "restored.json"
# Slower than any disk that one would put images on.
LEAST_BYTES_PER_SECOND = 64 << 20
CRIU_SECONDS = 60.0
ENDING_SECONDS = 10.0
JOURNAL_FAILS = "The journal cannot be written: whether the programs stand still would be forgotten."


class Sending(NamedTuple):
    """The programs of a claim that are to be sent, and where to."""

    ticket: wire.Ticket
    # The GPU of each assignment, by NVML's name, as the limits page has it.
    gpus: Mapping[str, str]


class Carrier:
    """Dumps and restores the claims of one node. Not thread-safe: the event loop's."""

    def __init__(self, node: Node, chosen: Settings) -> None:
        self._node = node
        self._settings = chosen
        self._receivers: dict[str, Receiver] = {}
        self._clear_leftovers(set(node.suspensions.claims))

    def _directory(self, claim_uid: str, way: str) -> Path:
        return self._settings.state_dir / "carry" / f"{claim_uid}.{way}"

    # ---- The old node ----

    async def send(
        self, runtime: ClaimRuntime, record: Suspension, sending: Sending, inventory: Inventory
    ) -> str | None:
        """Dump the claim's suspended processes and bring them to the other node; return why that failed, or None.

        After a failure they run, as far as the driver lets them; else they stand still.
        """
        directory = self._directory(runtime.claim_uid, "out")
        tree, words = programs.find_tree(record.processes)
        if words is not None or self._settings.criu is None:
            return words or "CRIU is not on this node."
        try:
            record.is_dumped = True
            if not self._node.suspensions.store():
                return JOURNAL_FAILS
            _make_directory(directory, tree[0].user)
            words = await self._dump(tree, directory, record.saved_bytes)
            if words is None:
                meta = self._describe(runtime, record, tree, sending, inventory)
                (directory / images.USAGE).write_bytes((runtime.directory / "usage").read_bytes())
                await asyncio.to_thread(transfer.send, sending.ticket, directory, meta)
        except (OSError, transfer.Failed) as error:
            words = str(error)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        if words is not None:
            self.wake(runtime, record)
        else:
            log.info("programs-sent", claim=runtime.claim_uid, processes=len(tree))
        return words

    async def _dump(self, tree: list[programs.Facts], directory: Path, saved_bytes: int) -> str | None:
        assert self._settings.criu is not None
        first = tree[0]
        command = criu.dump_command(self._settings.criu, first.user, host_pid=first.process.pid, pid=first.pid)
        seconds = CRIU_SECONDS + saved_bytes / LEAST_BYTES_PER_SECOND
        code = await criu.run(command, directory, seconds=seconds)
        if code is None:
            return f"CRIU has not dumped the programs within {seconds:.0f} s."
        return f"CRIU cannot dump the programs: {criu.describe_failure(directory / 'dump.log')}." if code else None

    def _describe(
        self,
        runtime: ClaimRuntime,
        record: Suspension,
        tree: list[programs.Facts],
        sending: Sending,
        inventory: Inventory,
    ) -> Meta:
        ahead = programs.clocks_ahead(tree[0].process)
        machine = time.monotonic_ns()
        indices = runtime.indices()
        return Meta(
            claim_uid=runtime.claim_uid,
            root=tree[0].pid,
            uid=tree[0].user.uid,
            gid=tree[0].user.gid,
            monotonic_ns=machine + ahead[0],
            boottime_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ahead[1],
            machine_ns=machine,
            gpus={indices[uid]: gpu for uid, gpu in sending.gpus.items()},
            saved={indices[uid]: record.saved.get(uid, 0) for uid in sending.gpus},
            limits_gen=runtime.limits_gen(),
            seen={one.pid: moving.seen_gpus(one.process, inventory) for one in tree if one.process in record.processes},
        )

    def wake(self, runtime: ClaimRuntime, record: Suspension) -> None:
        """Let programs that were dumped here, or have been restored here, go on."""
        if not record.is_dumped:
            return
        runtime.refresh()
        tree, _ = programs.find_tree(runtime.members.attached())
        for one in {*runtime.members.living(), *(facts.process for facts in tree)}:
            if processes.is_stopped(one):
                processes.send(one, signal.SIGCONT)
        record.is_dumped = False

    def note_suspended(self, runtime: ClaimRuntime, record: Suspension) -> str | None:
        """Record that the claim's programs stand still; let dumped ones go on, and say why, if the journal cannot."""
        runtime.members.freeze()
        if self._node.suspensions.note_suspended(runtime.claim_uid, record.processes):
            return None
        runtime.members.thaw()
        self.wake(runtime, record)
        return JOURNAL_FAILS

    # ---- The new node ----

    def offer(self, claim_uid: str) -> str | None:
        """Keep a ticket open for the claim's programs, unless they are here; return why there is none, or None."""
        receiver, tickets = self._receivers.get(claim_uid), self._node.suspensions.tickets
        if self._has(claim_uid, ARRIVED) or (receiver is not None and not receiver.is_over):
            return None
        if receiver is not None:
            return "The ticket was used up or became too old, and the programs are not here."
        if not self._node.suspensions.store():
            # The next agent would put the claim in force without them.
            return "The journal cannot be written: that programs are to come would be forgotten."
        try:
            receiver = Receiver(claim_uid, self._directory(claim_uid, "in"), self._settings.carry or "")
        except (OSError, transfer.Failed) as error:
            return f"This node cannot take programs: {error}"
        self._receivers[claim_uid] = receiver
        tickets[claim_uid] = receiver.ticket
        return None

    def forget(self, claim_uid: str) -> None:
        """Drop what came for the claim, and take nothing more."""
        if (receiver := self._receivers.pop(claim_uid, None)) is not None:
            receiver.close()
        self._node.suspensions.tickets.pop(claim_uid, None)
        shutil.rmtree(self._directory(claim_uid, "in"), ignore_errors=True)

    def _clear_leftovers(self, claim_uids: set[str]) -> None:
        """Remove images that an earlier agent left: dumps, and what came for claims that have no record."""
        for path in (self._settings.state_dir / "carry").glob("*"):
            if path.suffix == ".out" or path.stem not in claim_uids:
                shutil.rmtree(path, ignore_errors=True)

    def _has(self, claim_uid: str, name: str) -> bool:
        return (self._directory(claim_uid, "in") / name).exists()

    async def bring(self, runtime: ClaimRuntime, record: Suspension) -> str | None:
        """Restore the claim's programs, ready to be resumed, if they are not; return why that failed, or None."""
        claim_uid = runtime.claim_uid
        if self._has(claim_uid, RESTORED):
            self._continue(runtime, record)
            return None
        if not self._has(claim_uid, ARRIVED):
            runtime.refresh()
            return None if runtime.members.attached() else "The programs have not come to this node."
        # What an earlier agent had begun to restore is not used.
        await self._end(runtime)
        try:
            meta = statefile.read(self._directory(claim_uid, "in") / ARRIVED, Meta)
            assert meta is not None
            words = await self._restore(runtime, meta)
        except (OSError, PageError, Refused, statefile.Damaged) as error:
            words = f"The programs cannot be restored: {error}"
        if words is not None:
            await self._end(runtime)
            return words
        self._continue(runtime, record)
        return None

    async def _restore(self, runtime: ClaimRuntime, meta: Meta) -> str | None:
        directory = self._directory(runtime.claim_uid, "in") / transfer.IMAGES
        user = images.find_user(directory)
        if (user.uid, user.gid) != (meta.uid, meta.gid) or not self._settings.may_carry(user.uid):
            raise Refused(f"user {user.uid} is not in GPUCLOUD_CARRY_UIDS of this node.")
        user = criu.local_user(*user)
        if lost := [index for index in meta.gpus if index not in runtime.indices().values()]:
            raise Refused(f"the claim's GPUs have other places in its limits page here (not {lost}).")
        runtime.give(user.uid, user.gid)
        runtime.make_turns()
        for path in (directory, *directory.glob("*.img")):
            os.chown(path, user.uid, user.gid)
        size = sum(path.stat().st_size for path in directory.glob("*.img"))
        return await self._run_init(runtime, meta, user, size)

    async def _run_init(self, runtime: ClaimRuntime, meta: Meta, user: images.User, size: int) -> str | None:
        directory = self._directory(runtime.claim_uid, "in") / transfer.IMAGES
        assert self._settings.criu is not None
        # Their clocks go on as if no time had passed.
        ahead = (
            meta.monotonic_ns - time.monotonic_ns(),
            meta.boottime_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        )
        command = criu.restore_command(self._settings.criu, user, ahead=ahead)
        # The first line comes when it is in the claim's control group, which its children inherit.
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", 'read -r _ && exec "$@"', "sh", *command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True, cwd=directory,
        )  # fmt: skip
        assert shell.stdin is not None
        assert shell.stdout is not None
        if (first := processes.find(shell.pid)) is None:
            return "CRIU could not be started."
        runtime.register(first)
        seconds = CRIU_SECONDS + size / LEAST_BYTES_PER_SECOND
        with contextlib.suppress(ConnectionError):
            shell.stdin.write(b"go\n")
            shell.stdin.close()
        try:
            async with asyncio.timeout(seconds):
                answer = msgspec.json.decode(await shell.stdout.readline() or b"{}", type=dict[str, int | str])
        except (TimeoutError, msgspec.DecodeError):
            return f"CRIU has not restored the programs within {seconds:.0f} s."
        if answer.get("code") != 0:
            return f"CRIU cannot restore the programs: {criu.describe_failure(directory / 'restore.log')}."
        return self._take_page(runtime, meta, first)

    def _take_page(self, runtime: ClaimRuntime, meta: Meta, first: Process) -> str | None:
        """Let the usage page go on with the restored processes, which stand still."""
        directory = self._directory(runtime.claim_uid, "in")
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        namespace = Path(f"/proc/{children[0]}/ns/pid").stat().st_ino & 0xFFFFFFFF if children else 0
        restored = programs.in_namespace(namespace)
        if not namespace or {one.user.uid for one in restored} != {meta.uid}:
            return "CRIU did not restore the programs as their user."
        page = (directory / transfer.IMAGES / images.USAGE).read_bytes()
        names = [(one.pid, one.process.start_ticks) for one in restored]
        if not runtime.arrive(page, namespace, names, time.monotonic_ns() - meta.machine_ns):
            return "The usage page that came with the programs is damaged."
        if runtime.limits_gen() == meta.limits_gen:
            # They would take the limits here for those that they know.
            runtime.rewrite_limits()
        statefile.write(directory / RESTORED, meta, durable=True)
        (directory / ARRIVED).unlink()
        return None

    def _continue(self, runtime: ClaimRuntime, record: Suspension) -> None:
        """Let restored programs go on; they wait in the driver."""
        meta = self._read_restored(runtime.claim_uid)
        indices = {index: uid for uid, index in runtime.indices().items()}
        record.is_dumped = True
        self.wake(runtime, record)
        record.processes = runtime.members.attached()
        if meta is not None:
            record.saved = {indices[index]: size for index, size in meta.saved.items() if index in indices}
        self._node.suspensions.store()

    def _read_restored(self, claim_uid: str) -> Meta | None:
        with contextlib.suppress(statefile.Damaged):
            return statefile.read(self._directory(claim_uid, "in") / RESTORED, Meta)
        return None

    def find_maps(
        self, runtime: ClaimRuntime, inventory: Inventory
    ) -> tuple[dict[int, list[tuple[str, str]]], str | None]:
        """Return the driver's map for each process that came from another node's GPUs, or why there is none."""
        if (meta := self._read_restored(runtime.claim_uid)) is None:
            return {}, None
        names = {gpu_key(gpu.uuid): gpu.uuid for gpu in inventory.gpus}
        here = {index: names[runtime.slots[uid].gpu] for uid, index in runtime.indices().items() if index in meta.gpus}
        moves = {meta.gpus[index]: gpu for index, gpu in here.items()}
        maps = {}
        for one in map(programs.read, runtime.members.attached()):
            if one is None or (seen := meta.seen.get(one.pid)) is None:
                continue
            own = moving.seen_gpus(one.process, inventory)
            if sorted(seen) == sorted(own) and all(source == target for source, target in moves.items()):
                continue
            if len(seen) != len(own):
                return {}, (
                    f"Process {one.process.pid} began on a node with {len(seen)} GPU(s), and this one has {len(own)}: "
                    "the driver maps each to one."
                )
            maps[one.process.pid] = complete_map(moves, seen, own)
        return maps, None

    async def _end(self, runtime: ClaimRuntime) -> None:
        """Kill all processes of the claim here."""
        end = time.monotonic() + ENDING_SECONDS
        while runtime.members.any_left and time.monotonic() < end:
            runtime.members.thaw()
            runtime.members.kill()
            await asyncio.sleep(0.05)


def complete_map(moves: Mapping[str, str], seen: list[str], own: list[str]) -> list[tuple[str, str]]:
    """Return the whole map from one node's GPUs to another one's: each of them must go somewhere."""
    rest = zip(
        (gpu for gpu in seen if gpu not in moves), (gpu for gpu in own if gpu not in moves.values()), strict=True
    )
    return sorted([*moves.items(), *rest])


def _make_directory(directory: Path, user: images.User) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    # CRIU writes there as that user; nobody else looks into it.
    directory.parent.chmod(0o711)
    os.chown(directory, user.uid, user.gid)
