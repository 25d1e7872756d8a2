"""Remote shares of one node: the endpoint's process, the tickets that it gets, and the servers behind it.

The agent reads nothing from the network here. It passes the server's tickets to the endpoint, starts a remoting server
under a claim when a client with a ticket asks for a connection, and says when a claim ends.
"""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable

from agent import pinned_tls, wire
from agent.claims.remote_figures import Figures
from agent.host.gpus import Inventory
from agent.logs import log
from agent.node import Node
from agent.remote import component
from agent.remote.hosts import Hosts, NoServer, lives, spawn
from agent.settings import Settings

MOST_BYTES = 64 << 10
# Of another user's than any tenant's: nobody.
ENDPOINT_UID = 65534
LOOK_SECONDS = 0.25
IDLE_SECONDS = 30.0
# Each start is a hello.
AGAIN_SECONDS = 5.0
CLAIM_ENDED = "the claim has ended, or has left the node"
# A ticket may overtake the desired state by which it is allowed again.
OVERTAKE_SECONDS = 2.0


class RemoteShares:
    """The remote shares of one node. The event loop's."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        inventory: Callable[[], Inventory],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        """Start nothing yet. `renew` sends another hello, with the endpoint's address."""
        self._node, self._settings, self._inventory, self._renew = node, settings, inventory, renew
        self._control: socket.socket | None = None
        self._hosts: Hosts | None = None
        self._owners: dict[str, int] = {}
        self._ticket_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # What the hello says; None: no client can come.
        self.endpoint: wire.RemoteEndpoint | None = None
        # What each claim has moved, as the endpoint counts it.
        self.counts: dict[str, dict[str, float]] = {}
        self.figures = Figures()

    def take_ticket(self, frame: wire.RemoteTicket) -> None:
        """Let a client in."""
        self._owners[frame.claim_uid] = frame.owner
        self._ticket_at[frame.claim_uid] = time.monotonic()
        self._tell(
            {
                "ticket": frame.ticket,
                "claim": frame.claim_uid,
                "key": frame.key,
                "seconds": frame.seconds,
                "rate": frame.bytes_per_second,
            }
        )

    async def run(self) -> None:
        """Keep the endpoint until cancelled."""
        if self._settings.remote is None:
            await asyncio.Event().wait()
        said = ""
        while True:
            try:
                await self._serve()
            except (component.Unusable, pinned_tls.Failed, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("remote-shares-off", reason=said)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _serve(self) -> None:
        """Start the endpoint and follow it to its end. Raises Unusable, Failed, OSError."""
        chosen = self._settings.remote
        assert chosen is not None
        found = await asyncio.to_thread(component.find, chosen.server, chosen.search_path)
        identity = await asyncio.to_thread(pinned_tls.make_identity)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        with its, pinned_tls.listen(chosen.address, backlog=64) as listener:
            process = await spawn("agent.remote.endpoint", its.fileno(), listener.fileno())
            port = listener.getsockname()[1]
        self._control = mine
        self._hosts = Hosts(self._node, self._settings, found, self._inventory, self._note_end)
        uid = ENDPOINT_UID if os.getuid() == 0 else None
        self._tell({"key": identity.key, "certificate": identity.certificate, "uid": uid})
        self.endpoint = wire.RemoteEndpoint(
            host=chosen.address.rpartition(":")[0].strip("[]"),
            port=port,
            fingerprint=identity.fingerprint,
            component=found.kind.name,
            build=found.build,
        )
        log.info("remote-shares", port=port, component=found.kind.name, build=found.build)
        asyncio.get_running_loop().add_reader(mine, self._take)
        try:
            await self._renew()
            await self._follow(process)
        finally:
            self._close(mine)

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Notice the ends of claims until the endpoint ends."""
        waiting = asyncio.ensure_future(process.wait())
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=LOOK_SECONDS)
                self._look()
        finally:
            waiting.cancel()
        log.warning("remote-endpoint-died", code=process.returncode)

    def _look(self) -> None:
        assert self._hosts is not None
        for claim_uid in {*self._owners, *self._hosts.claims}:
            if words := self._find_end(claim_uid):
                self._owners.pop(claim_uid, None)
                self._ticket_at.pop(claim_uid, None)
                self.counts.pop(claim_uid, None)
                self.figures.forget(claim_uid)
                self._tell({"end": claim_uid, "words": words, "for_good": True})
                self._hosts.end(claim_uid, words)
        busy = {uid for uid, one in self.counts.items() if one.get("channels")}
        self._hosts.end_idle(busy, IDLE_SECONDS)

    def _find_end(self, claim_uid: str) -> str:
        """Return why the claim's clients must leave; empty if they may stay."""
        wanted = self._node.desired.assignments if self._node.desired is not None else ()
        present = [one for one in wanted if one.claim_uid == claim_uid and one.present]
        if not present or not lives(self._node.runtimes.get(claim_uid)):
            return CLAIM_ENDED
        if time.monotonic() - self._ticket_at.get(claim_uid, 0.0) < OVERTAKE_SECONDS:
            return ""
        return next((one.remote_refused for one in present if one.remote_refused), "")

    def _note_end(self, claim_uid: str, words: str) -> None:
        """Tell the clients of a server that has ended."""
        self._tell({"end": claim_uid, "words": words, "for_good": False})

    def _take(self) -> None:
        """Take a message of the endpoint."""
        assert self._control is not None
        try:
            message = self._control.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            asyncio.get_running_loop().remove_reader(self._control)
            return
        match json.loads(message):
            case {"connect": int(number), "claim": str(claim_uid)}:
                task = asyncio.ensure_future(self._connect(number, claim_uid))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case {"claim": str(claim_uid), "counts": dict(counts)}:
                self.counts[claim_uid] = counts
                self.figures.note(claim_uid, counts, now=time.monotonic())

    async def _connect(self, number: int, claim_uid: str) -> None:
        assert self._hosts is not None
        owner = self._owners.get(claim_uid)
        try:
            if owner is None:
                raise NoServer(f"{CLAIM_ENDED}.")
            with await self._hosts.connect(claim_uid, owner) as made:
                if self._control is not None:
                    socket.send_fds(self._control, [json.dumps({"connected": number}).encode()], [made.fileno()])
        except (NoServer, OSError) as error:
            self._tell({"refused": number, "words": str(error)})

    def _tell(self, message: dict[str, object]) -> None:
        if self._control is not None:
            # One that does not read is about to end.
            with contextlib.suppress(OSError):
                self._control.send(json.dumps(message).encode())

    def _close(self, control: socket.socket) -> None:
        self.endpoint = self._control = None
        asyncio.get_running_loop().remove_reader(control)
        control.close()
        if self._hosts is not None:
            for claim_uid in self._hosts.claims:
                self._hosts.end(claim_uid, "the node's endpoint for clients has ended")
        for task in self._tasks:
            task.cancel()
