"""`manage.py verify_audit`: verifies the chain of the audit log."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.quotas.services import audit_chain
from apps.quotas.services.audit_chain import Head


def _head(text: str) -> Head:
    position, _, digest = text.partition(":")
    if not position.isdecimal() or len(digest) != 64:
        raise CommandError(f"{text} is no head: write PLACE:DIGEST, as this command prints it.")
    return Head(int(position), digest)


class Command(BaseCommand):
    """Command that walks the chain."""

    help = (
        "Verify the audit log's chain and print its head; exits with 1 and names the event where it is broken. "
        "Example: manage.py verify_audit"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add heads that were stored elsewhere."""
        parser.add_argument(
            "--head",
            action="append",
            default=[],
            metavar="PLACE:DIGEST",
            help="a head that was printed or logged before: the chain must still contain it (repeatable)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the head. Raises CommandError with the faults."""
        verdict = audit_chain.verify(heads=[_head(text) for text in options["head"]])
        if verdict.faults:
            raise CommandError("The audit log is broken:\n" + "\n".join(verdict.faults))
        self.stderr.write(f"{verdict.head.position} events, all as they were; {verdict.unsealed} not sealed yet. Head:")
        self.stdout.write(str(verdict.head))
