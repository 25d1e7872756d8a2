"""A PostgreSQL data directory with every migration applied: made once, copied wherever an empty database is wanted.

Copying takes a fraction of a second, initdb and the migrations take many, and the tests want a dozen fresh databases.
What is kept is named by the digest of all that went into it, so a changed migration or pin makes another one, and there
is nothing in it but the schema: who starts from a copy still runs ``migrate``, and seeds it.
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
# What the settings insist on before they let anybody migrate.
ENVIRONMENT = {"SECRET_KEY": "signs nothing: only migrations run with it", "REDIS_URL": "unix:///nonexistent"}


def digest(root: Path = ROOT) -> str:
    """Of the migrations, ours and (by the pins) others', and of how PostgreSQL is set up."""
    found = hashlib.sha256()
    ours = sorted(root.glob("apps/*/migrations/*.py"))
    for path in (*ours, root / "requirements.txt", root / "deploy" / "embedded" / "postgres.py"):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return found.hexdigest()[:16]


def template() -> Path | None:
    """The data directory to copy, where one is kept that fits these migrations and that we may read."""
    kept = KEPT / digest()
    return kept if postgres.is_ours() and os.access(kept, os.R_OK | os.X_OK) else None


def make() -> Path | None:
    """The same, made now where it is not kept; None where nothing can be kept, or PostgreSQL's user could not read it.

    Raises StartFailed where the migrations fail.
    """
    if not postgres.is_ours():
        return None
    try:
        KEPT.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (KEPT / "lock").open("w")
    except OSError:
        # A checkout that may not be written to, or a directory that another user made: initdb is slower, no more.
        return None
    with lock, _alone(lock):
        if (kept := template()) is not None:
            return kept
        # Of other migrations, or left by a maker that was killed.
        for other in [path for path in KEPT.iterdir() if path.is_dir()]:
            shutil.rmtree(other, ignore_errors=True)
        _make(KEPT / digest())
    return template()


@contextlib.contextmanager
def _alone(lock: IO[str]) -> Iterator[None]:
    """One maker at a time; the others wait and find it made."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield


def _make(kept: Path) -> None:
    """Make it in a directory of its own and rename it at the end: what is killed leaves nothing half made."""
    with tempfile.TemporaryDirectory(prefix="new-", dir=kept.parent) as directory:
        state = Path(directory)
        program = postgres.server(state, durable=False)
        process = processes.start(program)
        try:
            processes.wait_ready(program, process)
            _migrate(postgres.url(state))
        finally:
            processes.stop(program, process)
        # Stopped in order and written to the disk: the next user's copy is as good as initdb's.
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
