"""The archives of runs on their way from the server: fetched in pieces with the node's own credential.

A fetch goes on where it stopped: what is there when an agent is killed is what the next one begins with.
"""

import asyncio
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Collection
from pathlib import Path

from agent import wire
from agent.logs import log
from agent.server import identity, rest
from agent.settings import Settings

# A server that is away, or refuses, is asked again so often.
RETRY_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
MOST_PIECE_BYTES = 1 << 20
PART, WHOLE = ".part", ".files"


class Failed(Exception):
    """The archive did not come; the message says why."""


class Fetches:
    """The archives of the runs of one node. The event loop's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, str] = {}

    def take(self, run: wire.JobRun) -> Path | str:
        """Return the archive of the run once it is here; until then begin or continue its fetch, and say so."""
        assert run.files is not None
        whole = self._path(run.uid, WHOLE)
        if whole.exists():
            return whole
        if run.uid not in self._tasks or self._tasks[run.uid].done():
            self._tasks[run.uid] = asyncio.create_task(self._fetch(run.uid, run.files))
        if run.uid in self._failures:
            return f"This node cannot fetch its files: {self._failures[run.uid]}"
        return f"This node fetches its files, {run.files.bytes} bytes."

    def forget(self, wanted: Collection[str]) -> None:
        """Remove what belongs to no wanted run."""
        for uid in [uid for uid in self._tasks if uid not in wanted]:
            self._failures.pop(uid, None)
            if self._tasks[uid].done():
                del self._tasks[uid]
        root = self._settings.jobs_dir
        for path in (*root.glob(f"*{PART}"), *root.glob(f"*{WHOLE}")):
            if path.stem not in wanted and path.stem not in self._tasks:
                path.unlink(missing_ok=True)

    async def _fetch(self, uid: str, files: wire.Files) -> None:
        try:
            await asyncio.to_thread(self._fetch_all, uid, files)
        except (Failed, OSError) as error:
            if self._failures.get(uid) != str(error):
                log.warning("files-not-fetched", run=uid, reason=str(error))
            self._failures[uid] = str(error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self._failures.pop(uid, None)
            log.info("files-fetched", run=uid, bytes=files.bytes)

    def _fetch_all(self, uid: str, files: wire.Files) -> None:
        """Fetch what is missing, and check all of it. Raises Failed, OSError."""
        part = self._path(uid, PART)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        # Unbuffered: what is here when the agent is killed need not come again.
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            at = file.seek(0, os.SEEK_END)
            while at < files.bytes:
                at += file.write(self._fetch_piece(uid, at))
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != files.sha256:
            part.unlink()
            raise Failed("what came is not what was uploaded; it is fetched again")
        part.rename(self._path(uid, WHOLE))

    def _fetch_piece(self, uid: str, offset: int) -> bytes:
        me = identity.load(self._settings.state_dir)
        url = f"{self._settings.server}/agent/job-files/{uid}?offset={offset}"
        headers = {"Authorization": f"Bearer {me.credential}"} if me is not None else {}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the agent's own server
        try:
            with rest.opener(url).open(request, timeout=TIMEOUT_SECONDS) as answer:
                data: bytes = answer.read(MOST_PIECE_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise Failed(f"the server answers {error.code}") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failed(f"the server does not answer: {getattr(error, 'reason', error)}") from error
        if not data:
            raise Failed("the server's answer is empty")
        return data

    def _path(self, uid: str, suffix: str) -> Path:
        return self._settings.jobs_dir / f"{uid}{suffix}"
