"""The policies of all pools side by side; a pool's own page changes them. Operators only."""

from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.console.shell.export import as_file, file_format
from apps.console.shell.page_access import page
from apps.quotas.models import Pool
from apps.quotas.principals import Principal

COLUMNS = [
    "pool", "sharing_policy", "backend", "mps_group", "parts", "core_ceiling", "placement_policy", "audit_policy",
    "repair_drift", "idle_rule", "idle_seconds", "unused_seconds", "idle_grace_seconds", "rebalance_mode",
    "rebalance_policy", "rebalance_bounds", "preemption_grace_seconds", "preempt_by_priority", "preempt_by",
    "patience_seconds", "fair_share", "half_life_seconds", "failover_policy", "failover_after_seconds",
    "oversubscribe", "slice_seconds", "pack_keep_percent", "default_schedule", "jobs", "remote",
    "remote_mib_per_second", "lend_memory", "longest_kernel_ms",
]  # fmt: skip


@require_GET
@page
def policy_table(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show a row for each pool."""
    principal.require_operator()
    pools = Pool.objects.order_by("name")
    if file := file_format(request):
        return as_file(file, "policies", COLUMNS, map(_facts, pools))
    return render(request, "policies/policies.html", {"pools": pools})


def _facts(pool: Pool) -> dict[str, Any]:
    return {name: getattr(pool, name) for name in COLUMNS if name != "pool"} | {"pool": pool.name}
