"""The whole import: read the cluster, plan, and execute or rehearse the plan."""

from django.conf import settings

from apps.clusters.importing import reading, rehearsing, taking
from apps.clusters.importing.plan import plan
from apps.clusters.importing.taking import Report
from apps.clusters.models import Cluster
from apps.clusters.services.connections import client_of
from apps.quotas.principals import Principal


def take_over(
    *, principal: Principal, cluster: Cluster, rehearsal: bool, gpushare_unit_mib: int | None = None
) -> Report:
    """Import the cluster, or rehearse it, and return the report.

    `gpushare_unit_mib`: MiB of one `aliyun.com/gpu-mem`, 1024 or 1; None: GPUSHARE_UNIT_MIB. Raises Denied, SealBroken,
    CredentialsUnusable, Unreachable, Refused.
    """
    principal.require_operator()
    unit = gpushare_unit_mib or settings.GPUSHARE_UNIT_MIB
    wanted = plan(reading.snapshot(client_of(cluster)), gpushare_unit_mib=unit)
    do = rehearsing.rehearse if rehearsal else taking.take
    return do(principal=principal, cluster=cluster, plan=wanted)
