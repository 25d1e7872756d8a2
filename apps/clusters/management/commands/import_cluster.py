"""`manage.py import_cluster`: takes over the pods and quotas of a shared cluster, without restarting a pod."""

import json
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.clusters.formats import gpushare
from apps.clusters.importing.taking_over import take_over
from apps.clusters.models import Cluster
from apps.quotas.principals import SYSTEM
from gpucloud.errors import GpucloudError


class Command(BaseCommand):
    """Command that reads, plans, and takes over or rehearses."""

    help = (
        "Take over a connected cluster: gpu-admission's quota map and ResourceQuotas become quotas, pods of "
        "gpu-manager, HAMi, gpushare and KubeShare become claims on the GPUs that they run on. Without --take nothing "
        "is changed: it prints what would be created. Repeatable. Example: manage.py import_cluster prod"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the cluster and the options of the import."""
        parser.add_argument("cluster", help="name of a connected cluster (POST /api/v1/clusters/)")
        parser.add_argument("--take", action="store_true", help="do it")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument(
            "--gpushare-unit-mib",
            type=int,
            default=settings.GPUSHARE_UNIT_MIB,
            help="MiB of one aliyun.com/gpu-mem: 1024, or 1; default: GPUSHARE_UNIT_MIB",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print created, existing and skipped objects. Raises CommandError if the cluster cannot be read."""
        unit = options["gpushare_unit_mib"]
        if not 1 <= unit <= gpushare.GIB:
            raise CommandError(f"--gpushare-unit-mib {unit} is out of range: give 1 to {gpushare.GIB}.")
        cluster = Cluster.objects.select_related("pool").filter(name=options["cluster"]).first()
        if cluster is None:
            raise CommandError(f"No cluster is called {options['cluster']}: connect it first.")
        try:
            report = take_over(
                principal=SYSTEM,
                cluster=cluster,
                rehearsal=not options["take"],
                gpushare_unit_mib=unit,
            )
        except GpucloudError as error:
            raise CommandError(error.detail) from error
        if options["json"]:
            self.stdout.write(json.dumps({"taken": options["take"], **asdict(report)}, indent=2))
            return
        self._tell("Made" if options["take"] else "Would be made", report.made)
        self._tell("There already", report.kept)
        self._tell("Left", [f"{left.about}: {left.why}" for left in report.left])

    def _tell(self, title: str, lines: list[str]) -> None:
        self.stdout.write(f"{title}: {len(lines)}")
        for line in lines:
            self.stdout.write(f"  {line}")
