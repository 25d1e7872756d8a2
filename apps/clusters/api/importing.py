"""/clusters/{name}/import/: take-over of the pods and quotas of a shared cluster."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.api.clusters import ClusterView
from apps.clusters.formats import gpushare
from apps.clusters.importing.taking_over import take_over
from apps.scheduling.api.claims import DRY_RUN, dry_run
from gpucloud.api import shown
from gpucloud.api.serializers import Strict


class ImportSerializer(Strict):
    """Options of an import."""

    gpushare_unit_mib = serializers.IntegerField(
        min_value=1,
        max_value=gpushare.GIB,
        allow_null=True,
        default=None,
        help_text="MiB of one `aliyun.com/gpu-mem`: 1024, or 1 if gpushare's device plugin counts in MiB; "
        "null: GPUSHARE_UNIT_MIB of the server.",
    )


class LeftSerializer(Strict):
    """An object that is not taken over, with the reason."""

    about = shown.text()
    why = shown.text()


class ImportReportSerializer(Strict):
    """Objects created by an import, or by its rehearsal."""

    dry_run = shown.flag()
    made = shown.texts()
    kept = shown.texts("Objects that existed already.")
    left = LeftSerializer(many=True, read_only=True)


class Import(ClusterView):
    """The importer."""

    serializer_class: Any = ImportSerializer
    tagged = False
    change_parameters = {"POST": frozenset({"dry_run"})}

    @extend_schema(parameters=[DRY_RUN], responses={200: ImportReportSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Create quotas, tenants and claims from what the cluster runs; no pod is restarted (operators).

        Repeatable: existing objects stay. With `dry_run=true` everything is done and rolled back.
        """
        cluster, rehearsal = self.find(name), dry_run(request)
        values = self.parse_body(request)
        report = take_over(principal=self.principal, cluster=cluster, rehearsal=rehearsal, **values)
        said = {"dry_run": rehearsal, "made": report.made, "kept": report.kept, "left": report.left}
        return Response(ImportReportSerializer(said).data)
