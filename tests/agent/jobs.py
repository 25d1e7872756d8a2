"""Runs of jobs for the agent's tests: what is wanted, and the server's side of their output."""

import asyncio
import contextlib
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, structs

from agent import wire
from agent.host import processes
from agent.jobs import files
from tests.agent.control import Connection
from tests.agent.stage import Stage, eventually

IS_ROOT = os.getuid() == 0
FIRST, LAST = 61200, 61209
USERS = f"{FIRST}-{LAST}" if IS_ROOT else "self"
OWNER = 3
ME = FIRST + OWNER if IS_ROOT else os.getuid()
only_root = pytest.mark.skipif(not IS_ROOT, reason="only root's agent starts programs as other users")


class Jobs:
    """The runs that a test wants, and the server's side of their output."""

    def __init__(self, stage: Stage, link: Connection) -> None:
        self.stage, self.link = stage, link
        self.claim = stage.assignment()
        self.runs: dict[str, wire.JobRun] = {}
        self.frame = 0
        # The stored output of each run.
        self.stored: dict[str, bytes] = {}
        self.answers = True
        self._serving = asyncio.create_task(self._serve())

    @property
    def root(self) -> Path:
        return self.stage.run_dir / "jobs"

    def directory(self, uid: str) -> Path:
        return self.root / uid

    def keepers(self) -> list[int]:
        """Return the pids of living keepers of this test."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and os.fsencode(self.root) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        # Their children look like them until they execute.
        parents = {pid: processes.find_with_parent(pid) for pid in found}
        return [pid for pid, there in parents.items() if there is not None and there[1] not in parents]

    async def start_again(self, **more: str) -> None:
        """Start the next agent."""
        self.stage.start(**(settings(self.stage) | more))
        self.link = await self.stage.control.connection()
        self._serving.cancel()
        self._serving = asyncio.create_task(self._serve())

    async def close(self) -> None:
        self._serving.cancel()
        self.runs.clear()
        for _ in range(100):
            if not self.keepers():
                return
            for path in self.root.glob("*"):
                with contextlib.suppress(OSError):
                    (path / files.STOP).touch()
            await asyncio.sleep(0.05)
        pytest.fail(f"keepers are left: {self.keepers()}")

    async def _serve(self) -> None:
        """Store output and answer, as the real server does."""
        link, seen = self.link, 0
        while True:
            while seen < len(link.frames):
                frame = link.frames[seen]
                seen += 1
                if isinstance(frame, wire.Output) and self.answers:
                    before = self.stored.get(frame.uid, b"")
                    assert frame.offset <= len(before)
                    self.stored[frame.uid] = before[: frame.offset] + frame.data
                    await link.send(wire.Stored(uid=frame.uid, bytes=len(self.stored[frame.uid])))
            link.heard.clear()
            await link.heard.wait()

    async def output(self, uid: str) -> str:
        """Return the whole output of an ended run, once the server has it."""
        ended = await self.reach(uid, "ended")
        await eventually(lambda: len(self.stored.get(uid, b"")) == ended.output_bytes)
        return self.stored.get(uid, b"").decode(errors="replace")

    async def send(self, *, assignments: list[wire.Assignment] | None = None) -> None:
        """Send the whole desired state."""
        self.frame += 1
        held = [self.claim] if assignments is None else assignments
        runs = list(self.runs.values()) or UNSET
        await self.link.send(wire.Desired(frame=self.frame, assignments=held, jobs=runs))

    async def want(self, *command: str, **more: Any) -> str:
        """Want one more run; return its uid."""
        facts: dict[str, Any] = {"claim_uid": self.claim.claim_uid, "command": list(command), "owner": OWNER}
        run = wire.JobRun(uid=str(uuid.uuid4()), **(facts | more))
        self.runs[run.uid] = run
        await self.send()
        return run.uid

    async def change(self, uid: str, **more: Any) -> None:
        """Change what is wanted of a run."""
        self.runs[uid] = structs.replace(self.runs[uid], **more)
        await self.send()

    def reason_of(self, uid: str) -> str | None:
        """Return the last reason that the agent reported of the run."""
        frames = [frame for frame in self.link.frames if isinstance(frame, wire.Observed)]
        return next((one.reason for frame in reversed(frames) for one in frame.jobs or () if one.uid == uid), None)

    async def reach(self, uid: str, *states: str) -> wire.JobState:
        """Wait until the agent reports one of these states of the run."""
        found: list[wire.JobState] = []

        def holds(frame: wire.Observed) -> bool:
            found[:] = [one for one in frame.jobs or () if one.uid == uid and one.state in states]
            return bool(found)

        await self.link.expect(wire.Observed, holds)
        return found[0]


def settings(stage: Stage) -> dict[str, Any]:
    """Return the settings of an agent that starts programs of jobs."""
    return {"GPUCLOUD_JOBS": USERS, "GPUCLOUD_JOBS_DIR": str(stage.run_dir / "jobs")}
