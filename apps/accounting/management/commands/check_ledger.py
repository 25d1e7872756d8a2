"""The command `manage.py check_ledger`: compare ledger, claims and used amounts."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounting.services import ledger_check
from apps.accounting.services.ledger_check import Difference
from apps.quotas.principals import SYSTEM


def table(found: list[Difference]) -> str:
    """Return a table with a line per number that differs."""
    rows = [("what", "number", "is", "should be")]
    rows += [(item.subject, item.number, str(item.is_now), str(item.should_be)) for item in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


class Command(BaseCommand):
    """Compares; with --repair, writes."""

    help = (
        "Check that ledger, claims and used amounts agree to the unit; list differences and exit with 1 if they do not."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options. A repair is never silent and never automatic."""
        parser.add_argument(
            "--repair", action="store_true", help="write what the claims say, with ledger entries and audit events"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a table of differences, or one line."""
        found = ledger_check.repair_all(principal=SYSTEM) if options["repair"] else ledger_check.differences()
        if found:
            self.stdout.write(table(found))
        left = ledger_check.differences() if options["repair"] else found
        if left:
            raise CommandError(f"{len(left)} numbers differ.")
        self.stderr.write(f"Repaired: {len(found)} numbers differed." if found else "Ledger, claims and quotas agree.")
