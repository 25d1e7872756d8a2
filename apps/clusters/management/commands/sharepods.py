"""`manage.py sharepods`: reconciles the SharePods of all clusters.

Several may run at once: one of them leads.
"""

import logging
from typing import Any

import yaml
from django.core.management.base import CommandParser
from django.db import DatabaseError

from apps.clusters.kube.client import Client
from apps.clusters.management.leading import Leading
from apps.clusters.models import Cluster
from apps.clusters.services import watchers
from apps.clusters.services.clusters import kubeconfig_of
from apps.clusters.sharepods.controller import SharePods
from apps.clusters.sharepods.definition import definition
from apps.clusters.sharepods.watching import WatchedSharePods
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)


class Command(Leading):
    """Command with a watch for each cluster."""

    help = "Reconcile SharePods: a claim, a pod and a status for each. Runs until stopped. Example: manage.py sharepods"
    lock, begins = watchers.SHAREPODS, (WatchedSharePods,)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for one pass and for the kind's definition."""
        parser.add_argument("--once", action="store_true", help="reconcile every cluster once and exit")
        parser.add_argument("--definition", action="store_true", help="print the CustomResourceDefinition and exit")

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT, or run once."""
        if options["definition"]:
            self.stdout.write(yaml.safe_dump(definition(), sort_keys=False))
            return
        if options["once"]:
            for cluster in Cluster.objects.filter(enabled=True).select_related("pool"):
                _look(cluster)
            return
        self.lead()


def _look(cluster: Cluster) -> None:
    try:
        SharePods(cluster, Client(kubeconfig_of(cluster))).reconcile_all()
    except GpucloudError as error:
        logger.warning("cluster %s: %s", cluster.name, error.detail)
    except DatabaseError:
        raise
    except Exception:
        # The library raises any exception about credentials; the other clusters go on.
        logger.exception("cluster %s could not be reconciled", cluster.name)
