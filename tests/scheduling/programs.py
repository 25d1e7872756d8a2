"""Programs of the platform as real processes, on the test's own database."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection

from tests import racing


@contextlib.contextmanager
def program(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block, then kill it."""
    name = str(connection.settings_dict["NAME"])
    url = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "gpucloud.settings", **environment}
    process = subprocess.Popen([sys.executable, *command], cwd=settings.BASE_DIR, env=env, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sessions(name: str | None = None) -> int:
    """Return the sessions on the test's database, except this process's; with a name those of a PGAPPNAME."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND application_name <> %(racer)s AND (%(name)s::text IS NULL OR application_name = %(name)s)",
            {"name": name, "racer": racing.NAME},
        )
        return int(cursor.fetchone()[0])


def threads(pid: int) -> int:
    """Return the number of threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
