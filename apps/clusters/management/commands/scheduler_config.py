"""`manage.py scheduler_config`: kube-scheduler's configuration for its version, or an old file converted."""

from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from apps.clusters.models import Cluster
from apps.clusters.services import configurations, scheduler_configuration
from gpucloud.errors import GpucloudError


class Command(BaseCommand):
    """Command that prints the configuration."""

    help = "Print kube-scheduler's configuration: a KubeSchedulerConfiguration, or a Policy for Kubernetes before 1.23."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--url", default="http://127.0.0.1:3456", help="URL of the extender for kube-scheduler.")
        parser.add_argument("--cluster", default="", help="Name of the cluster, for the path; default: the first one.")
        parser.add_argument("--policy", action="store_true", help="For Kubernetes before 1.23.")
        parser.add_argument(
            "--by-name",
            action="store_true",
            help="Send only names of nodes, which is much less data; Kubernetes 1.25 or later.",
        )
        parser.add_argument("--everything", action="store_true", help="Also prioritize, bind and preempt.")
        parser.add_argument("--scheduler-name", help="Name of a second kube-scheduler beside the cluster's own.")
        parser.add_argument("--convert", type=Path, metavar="FILE", help="Print this file in the other form instead.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print YAML."""
        if options["convert"] is not None:
            made = self._converted(options["convert"])
        else:
            address = configurations.address_for(options["url"], self._cluster(options["cluster"]))
            entry = scheduler_configuration.extender(
                address, by_name=options["by_name"], everything=options["everything"]
            )
            make = scheduler_configuration.policy if options["policy"] else scheduler_configuration.configuration
            named = {} if options["policy"] else {"scheduler_name": options["scheduler_name"]}
            made = make(entry, **named)
        self.stdout.write(yaml.safe_dump(made, sort_keys=False))

    def _cluster(self, name: str) -> Cluster | None:
        try:
            rows = Cluster.objects.filter(name=name) if name else Cluster.objects.order_by("pk")
            found = rows.first()
        except DatabaseError as error:
            raise CommandError(f"The database does not say which clusters there are: {error}") from error
        if found is None and name:
            raise CommandError(f"There is no cluster {name}.")
        return found

    def _converted(self, file: Path) -> dict[str, Any]:
        try:
            made, left_out = scheduler_configuration.convert(yaml.safe_load(file.read_text()) or {})
        except (OSError, yaml.YAMLError, AttributeError, GpucloudError) as error:
            raise CommandError(f"{file}: {error}") from error
        for name in left_out:
            self.stderr.write(f"{name} has no place in the other form: it was left out.")
        return made
