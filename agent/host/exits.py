"""Notification by the kernel when a process ends (pidfd), so that its memory is free at once and releases do not wait.

It is only a hint to check: the state is read anew at every check, which comes in any case.
"""

import asyncio
import os
from collections.abc import Callable

from agent.host import processes
from agent.host.processes import Process

# A tenant whose programs end a thousand times a second must not keep the agent checking all the time.
NEAREST_SECONDS = 0.05
# Of descriptors; processes above it are checked once a second.
MOST = 4096


class ExitWatcher:
    """A watcher that calls `wake` soon after one of the watched processes has ended. The event loop's."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._watched: dict[Process, int] = {}
        self._waking: asyncio.TimerHandle | None = None

    def watch(self, living: set[Process]) -> None:
        """Watch these processes from now on, and no others."""
        for process in self._watched.keys() - living:
            self._forget(process)
        for process in living - self._watched.keys():
            if len(self._watched) >= MOST:
                break
            self._open(process)

    def close(self) -> None:
        """Stop watching."""
        self.watch(set())
        if self._waking is not None:
            self._waking.cancel()

    def _open(self, process: Process) -> None:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return
        # The descriptor pins the process: one that has ended, or another with its pid, would be reported again and
        # again.
        if not processes.alive(process):
            os.close(descriptor)
            return
        self._watched[process] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._on_exit, process)

    def _on_exit(self, process: Process) -> None:
        self._forget(process)
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(NEAREST_SECONDS, self._call)

    def _call(self) -> None:
        self._waking = None
        self._wake()

    def _forget(self, process: Process) -> None:
        descriptor = self._watched.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
