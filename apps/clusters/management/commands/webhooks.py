"""`manage.py webhooks`: the admission webhooks alone.

Those of pods need neither database nor API server; that of ResourceClaims charges them, and needs the database.
"""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from apps.clusters.dra import charging
from apps.clusters.extender import listener


class Command(BaseCommand):
    """Command that serves the webhooks."""

    help = (
        "Serve the admission webhooks with TLS; renewed certificates are reloaded. "
        "Example: manage.py webhooks --certificate tls.crt --key tls.key"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the address and the certificate."""
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8443)
        parser.add_argument("--certificate", required=True, help="PEM, as webhook_certificates writes it: tls.crt")
        parser.add_argument("--key", required=True, help="PEM: tls.key")

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT."""
        listener.serve(
            charging.application,
            certificate=options["certificate"],
            key=options["key"],
            host=options["host"],
            port=options["port"],
        )
