"""The remoting servers of one node: one for each claim that a client uses, started under the claim."""

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable

from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.gpus import Inventory
from agent.jobs import bounds, resource_group, unit
from agent.jobs.run_directory import ENVIRONMENT
from agent.launch import authorization, execution
from agent.local_wire import Refusal
from agent.logs import log
from agent.node import Node
from agent.remote.component import PORT, Component
from agent.settings import Settings

MOST_BYTES = 64 << 10
# A claim that was just placed is in force within a moment.
ADMIT_SECONDS, RETRY_SECONDS = 10.0, 0.05
READY_SECONDS = 10.0
CONNECT_SECONDS = 20.0
PATH = "/usr/local/bin:/usr/bin:/bin"


class NoServer(Exception):
    """No connection to a claim's server; the message says why."""


class Host:
    """The process that keeps one claim's remoting server, and the connections that it gives."""

    def __init__(self, claim_uid: str, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.claim_uid, self._process, self._control = claim_uid, process, control
        self._answers: dict[int, asyncio.Future[socket.socket]] = {}
        # Why it has ended; None: it lives.
        self.ended: str | None = None
        self.used_at = time.monotonic()

    async def order(self, message: dict[str, object]) -> None:
        """Send a message. Raises OSError."""
        await asyncio.get_running_loop().sock_sendall(self._control, json.dumps(message).encode())

    async def ready(self) -> int:
        """Wait for its first message, before which it gives up no right; return its pid. Raises NoServer."""
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(READY_SECONDS):
                return int(json.loads(await asyncio.get_running_loop().sock_recv(self._control, MOST_BYTES))["pid"])
        raise NoServer("The remoting server could not be started.")

    async def connect(self, number: int) -> socket.socket:
        """Return a connection to the server. Raises NoServer."""
        self.used_at = time.monotonic()
        answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await self.order({"connect": number})
            async with asyncio.timeout(CONNECT_SECONDS):
                return await answer
        except (OSError, TimeoutError) as error:
            raise NoServer(self.ended or "The remoting server does not answer.") from error
        finally:
            self._answers.pop(number, None)

    def listen(self, on_end: Callable[["Host", str], None]) -> None:
        """Take its messages from now on; call `on_end` when it has ended."""

        def take() -> None:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, MOST_BYTES, 1)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            said = json.loads(message) if message else {"ended": "the process that keeps the remoting server has ended"}
            made = [socket.socket(fileno=one) for one in descriptors]
            answer = self._answers.get(int(said.get("connected") or said.get("refused") or 0))
            if made and answer is not None and not answer.done():
                answer.set_result(made.pop())
            elif answer is not None and not answer.done():
                answer.set_exception(NoServer(f"{said.get('words')}."))
            for one in made:
                one.close()
            if "ended" in said and self.ended is None:
                self.close(str(said["ended"]))
                on_end(self, str(said["ended"]))

        asyncio.get_running_loop().add_reader(self._control, take)

    def close(self, words: str) -> None:
        """End it: without its agent's socket it ends its server."""
        self.ended = words
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(NoServer(words))

    async def wait(self) -> None:
        """Return when its process has ended."""
        await self._process.wait()


class Hosts:
    """The hosts of one node. The event loop's."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        component: Component,
        inventory: Callable[[], Inventory],
        on_end: Callable[[str, str], None],
    ) -> None:
        """Start nothing yet. `on_end` is called with a claim and the reason when its server has ended."""
        self._node, self._settings, self._component = node, settings, component
        self._inventory, self._on_end = inventory, on_end
        self._hosts: dict[str, Host] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._numbers = 0

    async def connect(self, claim_uid: str, owner: int) -> socket.socket:
        """Return a connection to the claim's server, which is started if there is none. Raises NoServer."""
        async with self._starting.setdefault(claim_uid, asyncio.Lock()):
            host = self._hosts.get(claim_uid)
            if host is None or host.ended is not None:
                host = self._hosts[claim_uid] = await self._start(claim_uid, owner)
        self._numbers += 1
        return await host.connect(self._numbers)

    def end(self, claim_uid: str, words: str) -> None:
        """End the claim's server, if there is one."""
        self._starting.pop(claim_uid, None)
        if (host := self._hosts.pop(claim_uid, None)) is not None and host.ended is None:
            log.info("remoting-server-ended", claim=claim_uid, reason=words)
            host.close(words)

    def end_idle(self, busy: set[str], seconds: float) -> None:
        """End the servers that nobody has used for so long."""
        for claim_uid, host in list(self._hosts.items()):
            if claim_uid in busy:
                host.used_at = time.monotonic()
            elif time.monotonic() - host.used_at > seconds:
                self.end(claim_uid, "nobody uses it")

    @property
    def claims(self) -> set[str]:
        """The claims with a server."""
        return set(self._hosts)

    async def _start(self, claim_uid: str, owner: int) -> Host:
        assert self._settings.remote is not None
        try:
            uid = self._settings.remote.users.find(owner)
        except LookupError as error:
            raise NoServer(f"The node has no user for the claim's tenant: {error}.") from error
        await self._await_claim(claim_uid, uid)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        memory_bytes = self._memory_bytes(claim_uid)
        with its:
            process = await _spawn_outside("agent.remote.host", its, memory_bytes)
        host = Host(claim_uid, process, mine)
        try:
            await host.order({"group": f"remote-{claim_uid}", "memory_bytes": memory_bytes})
            await host.order(self._admit(claim_uid, uid, await host.ready()))
        except (NoServer, OSError) as error:
            mine.close()
            raise NoServer(str(error)) from error
        host.listen(self._ended)
        log.info("remoting-server-started", claim=claim_uid, uid=uid, component=self._component.kind.name)
        return host

    async def _await_claim(self, claim_uid: str, uid: int | None) -> None:
        deadline = time.monotonic() + ADMIT_SECONDS
        while True:
            refusal = authorization.find_job_obstacle(self._node, self._settings.library, claim_uid, uid)
            if refusal is None:
                return
            if time.monotonic() > deadline:
                raise NoServer(refusal.detail)
            await asyncio.sleep(RETRY_SECONDS)

    def _admit(self, claim_uid: str, uid: int | None, pid: int) -> dict[str, object]:
        """Put the process under the claim; return its order. Raises NoServer."""
        if (process := processes.find(pid)) is None:
            raise NoServer("The remoting server could not be started.")
        answer = authorization.admit_job(
            self._node, self._settings.library, claim_uid=claim_uid, process=process, uid=uid
        )
        if isinstance(answer, Refusal):
            raise NoServer(answer.detail)
        environment = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/", "GPUCLOUD_CLAIM": claim_uid}
        environment |= self._component.kind.environment
        execution.apply(answer, environment)
        return {"uid": uid, "command": [str(self._component.path)], "environment": environment, "port": PORT}

    def _memory_bytes(self, claim_uid: str) -> int:
        """Return the host memory that the server may take: as a job's program under the claim may."""
        desired, settings = self._node.desired, self._settings
        own = [one for one in desired.assignments if one.claim_uid == claim_uid] if desired else []
        gpu_bytes = {gpu.uuid: gpu.memory_bytes for gpu in self._inventory().gpus}
        return bounds.find_bounds(own, gpu_bytes, memory_mib=settings.jobs_memory_mib, disk_mib=0).memory_bytes

    def _ended(self, host: Host, words: str) -> None:
        if self._hosts.get(host.claim_uid) is host:
            del self._hosts[host.claim_uid]
        log.warning("remoting-server-lost", claim=host.claim_uid, reason=words)
        resource_group.remove(f"remote-{host.claim_uid}")
        self._on_end(host.claim_uid, words)


async def spawn(module: str, *descriptors: int) -> asyncio.subprocess.Process:
    """Start a module of the agent with these descriptors, which it finds as its arguments. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *map(str, descriptors)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        env=ENVIRONMENT,
        pass_fds=descriptors,
        start_new_session=True,
    )


async def _spawn_outside(module: str, control: socket.socket, memory_bytes: int) -> asyncio.subprocess.Process:
    """Start a module of the agent outside of the agent's sandbox, which makes no namespaces. Raises OSError."""
    settings = ("Delegate=yes", f"MemoryMax={memory_bytes}", "MemorySwapMax=0")
    outside = unit.outside()
    starter = [*outside[:-1], *(f"--property={one}" for one in settings), "--"] if outside else []
    variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    return await asyncio.create_subprocess_exec(
        *(*starter, "/usr/bin/env", *variables, sys.executable, "-P", "-m", module),
        stdin=control.fileno(),
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def lives(runtime: ClaimRuntime | None) -> bool:
    """Return whether programs may still run under the claim."""
    return runtime is not None and runtime.ending_since is None
