"""A node of a cluster: a real agent on the simulated driver, and the kubelet for which it is a device plugin.

Its event loop runs in a thread, so that a test may wait for the ledger meanwhile. The test passes the server's messages
to the agent: the wire between them is tested elsewhere.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from agent import wire
from tests.agent import forked
from tests.agent.cdi_rules import Edits
from tests.agent.control import Connection, Control
from tests.agent.kubelet import Container, Kubelet
from tests.agent.stage import Stage, eventually

T = TypeVar("T")


class AgentSide:
    """The agent, while the context is entered."""

    stage: Stage
    kubelet: Kubelet
    link: Connection
    hello: wire.Hello

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # A tmpfs with a path that is short enough for a socket.
        self._run_dir = Path(tempfile.mkdtemp(prefix="gpucloud-test-", dir="/dev/shm"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-side", daemon=True)
        self._control = Control()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "kubelet"):
            self._do(self.kubelet.stop())
        if hasattr(self, "stage"):
            self.stage.close()
        self._do(self._control.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def tell(self, desired: wire.Desired) -> wire.Observed:
        """Send the desired state; return the agent's message when it has applied all of it."""
        return self._do(self._tell(desired))

    def run(self, container: Container) -> Edits:
        """Run as the kubelet: admission, then a start; return the runtime's additions to the container."""
        return self._do(self._run(container))

    def _do(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(timeout=60)

    async def _start(self) -> None:
        await self._control.start()
        self.stage = Stage(self._directory, self._run_dir, self._control, agents=forked.server())
        self.kubelet = Kubelet(self._run_dir / "kubelet")
        await self.kubelet.start()
        self.stage.start(**self.kubelet.settings)
        self.link = await self._control.connection(seconds=30)
        self.hello = await self.link.expect(wire.Hello, seconds=30)
        self.stage.gpus = [gpu.uuid for gpu in self.hello.gpus]
        plugins = self.kubelet.plugins
        await eventually(lambda: len(plugins) == 2 and all(one.devices for one in plugins.values()), seconds=30)

    async def _tell(self, desired: wire.Desired) -> wire.Observed:
        await self.link.send(desired)
        wanted = {one.uid: one.generation for one in desired.assignments}

        def taken(said: wire.Observed) -> bool:
            states = {one.uid: one.generation for one in said.assignments if one.state in ("in_force", "released")}
            return wanted.items() <= states.items()

        return await self.link.expect(wire.Observed, taken, seconds=30)

    async def _run(self, container: Container) -> Edits:
        await self.kubelet.admit(container)
        return await self.kubelet.start_container(container, self.stage.run_dir / "cdi")
