"""The whole of it: read the cluster, plan, and make the plan true or rehearse it."""

from apps.clusters.formats import gpushare
from apps.clusters.importing import reading, rehearsing, taking
from apps.clusters.importing.plan import plan
from apps.clusters.importing.taking import Report
from apps.clusters.models import Cluster
from apps.clusters.services.connections import client_of
from apps.quotas.principals import Principal


def take_over(
    *, principal: Principal, cluster: Cluster, rehearsal: bool, gpushare_unit_mib: int = gpushare.GIB
) -> Report:
    """What is made, or would be. Raises Denied, SealBroken, CredentialsUnusable, Unreachable, Refused.

    `gpushare_unit_mib`: what one `aliyun.com/gpu-mem` is, 1024 or 1.
    """
    principal.require_operator()
    wanted = plan(reading.snapshot(client_of(cluster)), gpushare_unit_mib=gpushare_unit_mib)
    do = rehearsing.rehearse if rehearsal else taking.take
    return do(principal=principal, cluster=cluster, plan=wanted)
