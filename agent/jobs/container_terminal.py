"""A terminal in a run's container: the engine starts its program there. Standard library only.

The program gets what the container has: its user, variables, control group, seccomp profile and bounds. What it starts
is no descendant of the engine's client, and not always of another part of the engine here: it is known by a variable.
"""

import secrets
import signal
from typing import Any

from agent.host import processes
from agent.host.processes import Process
from agent.jobs import descendants, engine

MARK = "GPUCLOUD_TERMINAL"
SIGKILL_CODE = 128 + signal.SIGKILL


class ContainerTerminal:
    """The terminal of a container."""

    def __init__(self, order: dict[str, Any]) -> None:
        facts = order["container"]
        self._engine, self._name = [facts["engine"]], facts["name"]
        self._uid, self._home = order["uid"], order["home"]
        self._mark = secrets.token_hex(16)

    def command(self, command: list[str], environment: dict[str, str]) -> list[str]:
        """Return the engine's command, which starts this one in the container."""
        variables = environment | {MARK: self._mark}
        options = [f"--env={name}={value}" for name, value in variables.items()]
        # The number alone would add the groups that the image gives it.
        options += ["--interactive", "--tty", f"--user={self._uid}:{self._uid}", f"--workdir={self._home}"]
        return [*self._engine, "exec", *options, self._name, *command]

    def find_programs(self) -> set[Process]:
        """Return what was started in the terminal and still lives: with its variable, or below such a process."""
        found: set[Process] = set()
        children: dict[int, list[Process]] = {}
        for pid in descendants.pids():
            there = processes.find_with_parent(pid)
            if there is None:
                continue
            process, parent = there
            children.setdefault(parent, []).append(process)
            # Only the tenant's: another user may have learnt the variable, and write it into its own.
            if processes.variable(process, MARK) == self._mark and processes.user(process) == self._uid:
                found.add(process)
        waiting = list(found)
        while waiting:
            below = set(children.get(waiting.pop().pid, ())) - found
            found |= below
            waiting += below
        return found

    def ended_with_run(self, code: int) -> bool:
        """Return True if the program was ended because its container was."""
        if code != SIGKILL_CODE:
            return False
        container = engine.inspect(self._engine, "container", self._name)
        return container is None or not container["State"].get("Running")
