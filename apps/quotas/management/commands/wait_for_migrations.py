"""The command `manage.py wait_for_migrations`: end once the database has all migrations of this version."""

import signal
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import OperationalError

PAUSE_SECONDS = 2.0


class Command(BaseCommand):
    """Waits in one process: `migrate --check` in a loop would start Python again each time."""

    help = "Wait until the database answers and has all migrations of this version."
    # The checks of the database would fail before its tables exist.
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask every two seconds; write a line whenever the reason to wait changes."""
        # The first process of a container does not end by SIGTERM unless it asks for it.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        wanted = set(MigrationLoader(None).disk_migrations)
        last = ""
        while reason := _reason_to_wait(wanted):
            if reason != last:
                self.stderr.write(reason)
                last = reason
            time.sleep(PAUSE_SECONDS)


def _reason_to_wait(wanted: set[tuple[str, str]]) -> str:
    """Return why the processes cannot start yet; empty if they can."""
    try:
        missing = wanted - set(MigrationRecorder(connection).applied_migrations())
    except OperationalError as error:
        return f"Waiting for the database: {str(error).strip()}"
    finally:
        connection.close_if_unusable_or_obsolete()
    return (
        "Waiting for the migrations of this version: the Job `migrate` or `manage.py migrate` runs them."
        if missing
        else ""
    )
