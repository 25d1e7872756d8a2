"""`manage.py agent_bundle`: the agent's bundle as a file, for installations that distribute it themselves."""

import platform
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.nodes.services.bundle import bundle


class Command(BaseCommand):
    """Command that writes the bundle."""

    help = "Write the agent's bundle, the same bytes that the server serves. Example: manage.py agent_bundle dist"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the directory that the file is written to."""
        parser.add_argument("directory", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        """Write the file and print its path. Raises CommandError if libvcuda is not built."""
        made = bundle()
        if made is None:
            raise CommandError("libvcuda is not built here: run make -C libvcuda first.")
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        path = options["directory"] / f"gpucloud-agent-{made.version}-{python}-{platform.machine()}.pyz"
        path.write_bytes(made.content)
        self.stdout.write(str(path))
