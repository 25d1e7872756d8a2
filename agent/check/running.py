"""The self-check inside the running agent: in its own sandbox, user and namespaces."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from agent.check import everything
from agent.host.gpus import Inventory
from agent.launch import authorization
from agent.local_api.listener import Caller
from agent.local_wire import Answer, Checked, Refusal
from agent.logs import log
from agent.settings import Settings
from agent.wire import Check

# It takes milliseconds; the hello must not wait for a check that hangs.
HELLO_SECONDS = 2.0
# The whole check also asks the server and starts trial programs.
WHOLE_SECONDS = 45.0


class SelfCheck:
    """The self-checks of one agent; `take_inventory` reads its GPUs first."""

    def __init__(self, settings: Settings, take_inventory: Callable[[], Awaitable[Inventory]]) -> None:
        self._settings, self._take_inventory = settings, take_inventory
        self._last: list[Check] = []
        self._whole: asyncio.Task[list[Check]] | None = None

    async def check_machine(self, inventory: Inventory) -> list[Check]:
        """Return the findings about the machine; the last known ones if a check takes too long (a hung disk, say)."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                self._last = await asyncio.to_thread(everything.check_machine, self._settings, inventory)
        except TimeoutError:
            log.warning("check-abandoned", reason=f"it took more than {HELLO_SECONDS:g} s")
        return self._last

    async def answer(self, caller: Caller) -> Answer:
        """Run the whole self-check for root or the agent's own user; callers at the same time share one run."""
        if not authorization.is_operator(caller):
            return Refusal(code="not-allowed", detail="Only the agent's own user and root may run its self-check.")
        if self._whole is None or self._whole.done():
            self._whole = asyncio.create_task(self._run())
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                checks = await asyncio.shield(self._whole)
        except TimeoutError:
            return Refusal(code="failed", detail=f"The agent's self-check took more than {WHOLE_SECONDS:g} s.")
        return Checked(server=self._settings.server, pid=os.getpid(), checks=checks)

    async def _run(self) -> list[Check]:
        inventory = await self._take_inventory()
        return await asyncio.to_thread(everything.check_everything, self._settings, inventory)
