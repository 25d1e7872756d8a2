"""One machine with its agent and a stand-in for the server, and the programs that run there."""

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pynvml

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, GPULOAD, ROOT, SECRET, Stage
from tests.agent.test_reconcile import changed

PROGRAMS = ROOT / "benchmarks" / "shim" / "programs"
PROGRAM_OF = {"jax": "suspended_jax.py", "managed": "unmovable.py", "ipc": "unmovable.py", "mps": "unmovable.py"}
STEPS = 100_000
MIB = 1 << 20
CONTEXT_MIB = 1024


def print_threads(parent: int) -> None:
    """Print what every thread of the program and of its children does: in the kernel, and in Python by SIGUSR1."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            before = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(before, []).append(int(entry.name))
    todo = [parent]
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                words = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
                print(f"  {pid}/{task.name} {state}", *words, flush=True)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(2)


class Program:
    """A training program under the claim, or under none, and the lines that it has printed."""

    def __init__(
        self, stage: Stage, held: wire.Assignment | None, kind: str, gib: float, more: dict[str, str] | None = None
    ) -> None:
        command = [sys.executable, str(PROGRAMS / PROGRAM_OF.get(kind, "suspended.py")), kind, str(gib), str(STEPS)]
        if stage.simulated:  # type: ignore[attr-defined]
            command = [str(GPULOAD), "--memory", f"{max(1, int(gib))}GiB", "--interval", "0.1"]
        variables = {"GPUCLOUD_CLAIM_SECRET": SECRET, "GPUCLOUD_AGENT_SOCKET": str(stage.run_dir / "agent.sock")}
        if held is not None:
            command = [sys.executable, "-m", "agent", "exec", held.claim_uid, "--", *command]
        self.kind, self.steps = kind, dict[int, str]()
        self.largest: queue.Queue[int] = queue.Queue()
        self.process = subprocess.Popen(
            command, env=stage.environment(**(variables | (more or {}))),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        stage.programs.append(self.process)  # type: ignore[arg-type]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for at, line in enumerate(self.process.stdout):
            words = line.split()
            if words[:1] == ["largest"]:
                self.largest.put(int(words[1]))
            elif words[:1] == ["step"]:
                self.steps[int(words[1])] = " ".join(words[2:])
            else:
                self.steps[at] = ""

    async def goes_on(self, steps: int = 3, *, seconds: float = 45) -> None:
        """Wait until it has made so many further steps."""
        before, end = len(self.steps), time.monotonic() + seconds
        while len(self.steps) < before + steps:
            assert self.process.poll() is None, f"{self.kind} has ended: {self.process.returncode}"
            if time.monotonic() > end:
                print_threads(self.process.pid)
                raise AssertionError(f"{self.kind} makes no steps")
            await asyncio.sleep(0.02)

    async def reaches(self, step: int) -> None:
        """Wait until it has made this step."""
        end = time.monotonic() + 60
        while len(self.steps) < step and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def probe(self) -> int:
        """Return the largest allocation that it can have, in MiB."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return await asyncio.to_thread(self.largest.get, timeout=60)

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


class Bench:
    """One machine with its agent."""

    def __init__(self, root: Path, control: Control, *, simulated: bool) -> None:
        self.stage = Stage(root, root / "run", control, gpus=1)
        self.stage.simulated = simulated  # type: ignore[attr-defined]
        self.control, self.simulated, self.frame = control, simulated, 0
        self.wanted: dict[str, wire.Assignment] = {}
        self.checks: list[str] = []
        # Cycles end after so long, however many they were to be.
        self.part_seconds = 600.0

    async def start(self, *, host_memory_mib: int = 100 << 10) -> None:
        """Start the agent, and take its first words."""
        variables: dict[str, Any] = {
            "GPUCLOUD_SUSPEND_MEMORY_MIB": str(host_memory_mib),
            "GPUCLOUD_SUSPEND_SECONDS": "15",
        }
        if not self.simulated:
            variables["GPUCLOUD_SIM_NODE"] = ""
        self.stage.start(**variables)
        self.link: Connection = await self.control.connection(seconds=60)
        hello = await self.link.expect(wire.Hello)
        self.stage.gpus = [gpu.uuid for gpu in hello.gpus]
        self.card_mib = hello.gpus[0].memory_bytes // MIB
        if not self.simulated:
            pynvml.nvmlInit()

    def used_mib(self) -> int:
        """Return the memory in use on the GPU by NVML."""
        if self.simulated:
            shown = subprocess.run(
                [BUILD / "simnode", "show", self.stage.node_file], capture_output=True, text=True, check=True
            )
            return int(shown.stdout.rpartition("/")[0].rpartition(" ")[2])
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20

    def of_programs_mib(self, programs: list[Program]) -> int:
        """Return the memory in use by these programs, which others beside them do not change."""
        if self.simulated:
            return self.used_mib()
        mine = {one.process.pid for one in programs}
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
        return sum(int(one.usedGpuMemory or 0) for one in listed if one.pid in mine) >> 20

    async def want(self, uid: str, **more: Any) -> int:
        """Send the desired state with this change; return the assignment's new generation."""
        one = self.wanted[uid]
        self.wanted[uid] = changed(one, generation=one.generation + 1, **more)
        self.frame += 1
        self.link.forget()
        await self.link.send(wire.Desired(frame=self.frame, assignments=list(self.wanted.values())))
        return one.generation + 1

    async def state(self, uid: str, state: str, generation: int) -> wire.Observation:
        """Wait for this state; a refusal ends the run, in words."""
        while True:
            frame = await self.link.expect(wire.Observed, seconds=150)
            for one in frame.assignments:
                if one.uid == uid and one.generation == generation:
                    if isinstance(one.suspend_refused, str):
                        raise RuntimeError(one.suspend_refused)
                    if one.state == state:
                        return one
            # Those that are left are newer.
            self.link.frames.remove(frame)

    async def claim(self, memory_gib: float, core: int = 100) -> wire.Assignment:
        """Put a claim in force."""
        held = self.stage.assignment(memory_bytes=int(memory_gib * GIB), core_request=core, core_limit=core)
        self.wanted[held.uid] = changed(held, generation=0)
        await self.state(held.uid, "in_force", await self.want(held.uid))
        return held

    async def release(self, held: wire.Assignment) -> None:
        generation = await self.want(held.uid, present=False)
        await self.state(held.uid, "released", generation)
        del self.wanted[held.uid]

    async def suspend(self, held: wire.Assignment) -> tuple[float, int]:
        """Suspend; return the seconds and the bytes saved."""
        begun = time.monotonic()
        one = await self.state(held.uid, "suspended", await self.want(held.uid, suspended=True))
        assert isinstance(one.saved_bytes, int)
        return time.monotonic() - begun, one.saved_bytes

    async def resume(self, held: wire.Assignment) -> float:
        begun = time.monotonic()
        await self.state(held.uid, "in_force", await self.want(held.uid, suspended=False))
        return time.monotonic() - begun

    async def leave(self) -> None:
        """Release whatever a part that failed has left."""
        for one in list(self.wanted.values()):
            await self.release(one)

    def check(self, words: str, holds: bool) -> None:
        """Note one fact that was to be shown."""
        self.checks.append(f"{'ok  ' if holds else 'FAIL'}  {words}")
        print(self.checks[-1], flush=True)
