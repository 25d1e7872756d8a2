"""The driver's calls that move the GPU memory of a claim's processes to host memory and back: a short-lived process.

It runs beside the agent, since a driver call may hang, or end its process. One order in JSON on standard input, lines
of JSON on standard output: each call before it is made, and at the end the result. All processes are suspended, or all
are left running. It asks the driver for the state of every process first, so an order may be given again after any end
of an earlier helper: what a killed one had begun, the process itself ends. The driver's calls wait for threads of the
other process: they hang while that is stopped or its control group frozen. Standard library only.
"""

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
CALLS = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
PR_SET_PDEATHSIG = 1
# A process whose call another helper began, and was killed in, changes its state by itself a little later.
AGAIN_SECONDS = 0.2
# What a person may do about it, by the driver's number of the error.
CURES = {
    1: "Its driver saw other GPUs when the program began than this machine has now: it can only stay on its own.",
    2: "There is not so much free memory: of the GPU, or in the claim's limit.",
    304: "The driver cannot bring the process back any more: release the claim, and start it from its own checkpoint.",
    600: "Its work on the GPU did not end in time: try again when its kernels are shorter.",
    801: "It uses what the driver cannot move: managed memory (also a `__managed__` variable), MPS, or a MIG device.",
}

BEGUN = "A program began to use the GPU meanwhile: try again."

Pid = int


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair."""

    _fields_ = (("source", ctypes.c_ubyte * 16), ("target", ctypes.c_ubyte * 16))


class RestoreArguments(ctypes.Structure):
    """CUcheckpointRestoreArgs."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved0", ctypes.c_char * (64 - ctypes.sizeof(ctypes.c_void_p) - ctypes.sizeof(ctypes.c_uint))),
        ("reserved1", ctypes.c_uint64),
    )


class CallFailed(Exception):
    """A call of the driver answered an error; the message says which, of what process, and what to do."""


class Driver:
    """libcuda's calls on other processes. Raises OSError or AttributeError if it has none."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._calls = {name: getattr(self._library, f"cuCheckpointProcess{name}") for name in CALLS}

    def state(self, pid: Pid) -> int | None:
        """Return the process's state; None if it uses no GPU, or is gone."""
        found = ctypes.c_int()
        say(step="cuCheckpointProcessGetState", pid=pid)
        return None if self._call("GetState", pid, ctypes.byref(found)) else found.value

    def lock(self, pid: Pid, timeout_ms: int) -> None:
        """Let its present calls and its work on the GPU end, and make its further calls wait. Raises CallFailed."""
        self._must("Lock", pid, ctypes.byref(LockArguments(timeout_ms=timeout_ms)))

    def checkpoint(self, pid: Pid) -> None:
        """Move its GPU memory to host memory. Raises CallFailed."""
        self._must("Checkpoint", pid, None)

    def restore(self, pid: Pid, pairs: Sequence[Sequence[str]] = ()) -> None:
        """Move its GPU memory back, to other GPUs by `pairs` of a source's and a target's name. Raises CallFailed."""
        if not pairs:
            return self._must("Restore", pid, None)
        rows = (GpuPair * len(pairs))(*(GpuPair(*map(uuid_bytes, pair)) for pair in pairs))
        return self._must("Restore", pid, ctypes.byref(RestoreArguments(pairs=rows, count=len(pairs))))

    def cuda(self) -> int:
        """Return the CUDA version of the driver, as it numbers it."""
        found = ctypes.c_int()
        return 0 if self._library.cuDriverGetVersion(ctypes.byref(found)) else found.value

    def unlock(self, pid: Pid) -> None:
        """Let its calls go on. Raises CallFailed."""
        self._must("Unlock", pid, None)

    def _must(self, name: str, pid: Pid, argument: Any) -> None:
        say(step=f"cuCheckpointProcess{name}", pid=pid)
        error = self._call(name, pid, argument)
        if error:
            words = f"cuCheckpointProcess{name} of process {pid} failed: {self._name(error)} ({error})."
            raise CallFailed(f"{words} {CURES.get(error, '')}".strip())

    def _call(self, name: str, pid: Pid, argument: Any) -> int:
        # No cuInit: the calls need none, and NOT_INITIALIZED is said of the other process.
        return int(self._calls[name](ctypes.c_int(pid), argument))

    def _name(self, error: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(error, ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")


def uuid_bytes(gpu: str) -> Any:
    """Return the bytes of a GPU's name by NVML ("GPU-…")."""
    return (ctypes.c_ubyte * 16)(*bytes.fromhex(gpu.partition("-")[2].replace("-", "")))


def say(**facts: Any) -> None:
    """Write one line for the agent."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def is_living(pid: Pid, start_ticks: int) -> bool:
    """Return whether this very process lives."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(fields[19]) == start_ticks and fields[0] not in (b"Z", b"X")


class Order:
    """One order: the claim's processes, and how long calls may take."""

    def __init__(self, driver: Driver, order: dict[str, Any]) -> None:
        self.driver = driver
        self._started = {int(pid): int(ticks) for pid, ticks in order["processes"]}
        self._lock_ms = int(order["lock_ms"])
        self._until = time.monotonic() + float(order["undo_seconds"])
        # Of processes that are to be brought to other GPUs.
        self._maps: dict[Pid, list[list[str]]] = {int(pid): pairs for pid, pairs in order["maps"].items()}

    def states(self) -> dict[Pid, int]:
        """Return the states of the processes that live and use a GPU."""
        living = [pid for pid, ticks in self._started.items() if is_living(pid, ticks)]
        return {pid: state for pid in living if (state := self.driver.state(pid)) is not None}

    def carry_out(self, action: str) -> tuple[str, str]:
        """Carry one action out; return the result and why it is not what was wanted."""
        if action == "release":
            return self.release(), ""
        if action == "keep":
            return self.keep()
        return self.suspend() if action == "suspend" else self.resume()

    def keep(self) -> tuple[str, str]:
        """Suspend those of the processes that are not; nothing is brought back, whose room may be another's by now."""
        try:
            self._each(RUNNING, lambda pid: self.driver.lock(pid, self._lock_ms))
            self._each(LOCKED, self.driver.checkpoint)
        except CallFailed as error:
            self._each(LOCKED, self.driver.unlock)
            return "mixed", str(error)
        return ("suspended", "") if set(self.states().values()) <= {CHECKPOINTED} else ("mixed", BEGUN)

    def suspend(self) -> tuple[str, str]:
        """Suspend all processes, or let all go on; return the result and why it is not what was wanted."""
        try:
            self._each(RUNNING, lambda pid: self.driver.lock(pid, self._lock_ms))
            self._each(LOCKED, self.driver.checkpoint)
        except CallFailed as error:
            self._until = max(self._until, time.monotonic() + 1)
            return self.release(), str(error)
        return ("suspended", "") if set(self.states().values()) <= {CHECKPOINTED} else (self.release(), BEGUN)

    def resume(self) -> tuple[str, str]:
        """Bring all processes back, or leave all suspended; return the result and why it is not what was wanted."""
        try:
            self._each(CHECKPOINTED, self._restore)
        except CallFailed as error:
            if not set(self.states().values()) <= {LOCKED, CHECKPOINTED}:
                # One is broken for ever (FAILED), or has ended of that already: the others come back.
                return self.release(), str(error)
            if self._maps:
                # Some are on their new GPUs, some are not: the agent notes which before they are suspended again.
                return "halted", str(error)
            try:
                self._each(LOCKED, self.driver.checkpoint)
            except CallFailed as again:
                return "mixed", f"{error} {again}"
            return "suspended", str(error)
        return self.release(), ""

    def release(self) -> str:
        """Let every process go on, from whatever state; return `running`, or `mixed` if some could not in time."""
        while True:
            left = {pid: state for pid, state in self.states().items() if state in (LOCKED, CHECKPOINTED)}
            if not left:
                return "running"
            for pid, state in left.items():
                try:
                    (self._restore if state == CHECKPOINTED else self.driver.unlock)(pid)
                except CallFailed as error:
                    say(failed=str(error))
                    if time.monotonic() > self._until:
                        return "mixed"
                    time.sleep(AGAIN_SECONDS)

    def _restore(self, pid: Pid) -> None:
        self.driver.restore(pid, self._maps.get(pid, ()))

    def _each(self, state: int, change: Any) -> None:
        """Change every process that is in this state. One that ends meanwhile needs no change."""
        for pid, found in self.states().items():
            if found != state:
                continue
            try:
                change(pid)
            except CallFailed:
                if is_living(pid, self._started[pid]):
                    raise


def main() -> None:
    """Carry one order out."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    order = json.loads(sys.stdin.readline())
    if os.getppid() != order["agent"]:
        return
    try:
        driver = Driver(order["library"])
    except (OSError, AttributeError) as error:
        say(result="unable", reason=str(error), states={})
        return
    if order["action"] == "probe":
        say(result="able", reason="", states={}, cuda=driver.cuda())
        return
    todo = Order(driver, order)
    result, reason = todo.carry_out(order["action"])
    say(result=result, reason=reason, states=todo.states())


if __name__ == "__main__":
    main()
