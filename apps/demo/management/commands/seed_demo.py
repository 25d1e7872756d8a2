"""The command `manage.py seed_demo`: create the platform of `make demo`."""

from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser

from apps.demo import seeding


class Command(BaseCommand):
    """The command."""

    help = "Make the demo's tenants, quotas, nodes and claims, or (--workloads) print the programs to start."
    # The checks import every view: a third of a start.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--state-dir", type=Path, required=True, help="Token and password files are written here.")
        parser.add_argument("--default-node", action="append", help="A node of pool `default` (sim-1), or several.")
        parser.add_argument("--migrate", action="store_true", help="Apply the migrations first.")
        parser.add_argument("--workloads", action="store_true", help="Print a line of JSON per program to start.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Seed the demo, or print its programs."""
        if options["migrate"]:
            call_command("migrate", interactive=False)
        if options["workloads"]:
            for line in seeding.workloads():
                self.stdout.write(line)
                self.stdout.flush()
        else:
            seeding.seed(state_dir=options["state_dir"], default_nodes=options["default_node"] or ["sim-1"])
