"""`manage.py clusters`: watches every cluster and keeps the ledger in step with its pods and ResourceClaims.

Several may run at once: one of them leads.
"""

from typing import Any

from apps.clusters.dra.watching import DeviceWatch
from apps.clusters.management.leading import Leading
from apps.clusters.services import watchers
from apps.clusters.watching import Watched


class Command(Leading):
    """The watch over clusters."""

    help = (
        "Watch the Kubernetes clusters: turn their pods into claims of their namespaces' tenants. "
        "Example: manage.py clusters"
    )
    lock, begins = watchers.CLUSTERS, (Watched, DeviceWatch)

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT."""
        self.lead()
