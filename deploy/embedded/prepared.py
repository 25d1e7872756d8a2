"""Prepared PostgreSQL data directory with every migration applied, copied for each empty database.

Copying takes a fraction of a second, initdb and the migrations take many, and the tests want a dozen fresh databases.
The cache is named by the digest of its inputs, so a changed migration or pin makes another one. It contains the schema
only: a start from a copy still runs ``migrate`` and seeds.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from deploy.embedded import postgres, processes
from deploy.embedded.processes import StartFailed

ROOT = Path(__file__).resolve().parent.parent.parent
# Sixty megabytes each; `make clean` removes them.
KEPT = ROOT / ".cache" / "databases"
MIGRATE_SECONDS = 300.0
# Variables that the settings require before a migration.
ENVIRONMENT = {"SECRET_KEY": "signs nothing: only migrations run with it", "REDIS_URL": "unix:///nonexistent"}


def digest(root: Path = ROOT) -> str:
    """Return the digest of all migrations (the packages' through the pins) and of PostgreSQL's configuration."""
    found = hashlib.sha256()
    ours = sorted(root.glob("apps/*/migrations/*.py"))
    for path in (*ours, root / "requirements.txt", root / "deploy" / "embedded" / "postgres.py"):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def template() -> Path | None:
    """Return the prepared directory if there is a readable one for these migrations."""
    kept = KEPT / digest()
    return kept if postgres.is_ours() and os.access(kept, os.R_OK | os.X_OK) else None


def make() -> Path | None:
    """Return the prepared directory, made now if needed.

    None if it cannot be kept, or PostgreSQL's user could not read it. Raises StartFailed if the migrations fail.
    """
    if not postgres.is_ours():
        return None
    try:
        KEPT.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (KEPT / "lock").open("w")
    except OSError:
        # A read-only checkout, or a directory made by another user: initdb is slower but works.
        return None
    with lock, _exclusive(lock):
        if (kept := template()) is not None:
            return kept
        # Directories of other migrations, or left by a maker that was killed.
        for other in [path for path in KEPT.iterdir() if path.is_dir()]:
            shutil.rmtree(other, ignore_errors=True)
        _make(KEPT / digest())
    return template()


@contextlib.contextmanager
def _exclusive(lock: IO[str]) -> Iterator[None]:
    """Hold a file lock: one maker at a time; the others wait and find the result."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield


def _make(kept: Path) -> None:
    """Make it in a temporary directory and rename it at the end: a kill leaves no partial one."""
    with tempfile.TemporaryDirectory(prefix="new-", dir=kept.parent) as directory:
        state = Path(directory)
        program = postgres.server(state, durable=False)
        process = processes.start(program)
        try:
            processes.wait_ready(program, process)
            _migrate(postgres.url(state))
        finally:
            processes.stop(program, process)
        # Stopped in order and flushed to disk: a copy is as good as initdb's result.
        postgres.sync(state)
        (state / postgres.DATA).rename(kept)


def _migrate(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "migrate", "--no-input", "--verbosity", "0"],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "gpucloud.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=MIGRATE_SECONDS,
    )
    if done.returncode != 0:
        raise StartFailed(f"the migrations failed:\n{done.stdout}{done.stderr}")
