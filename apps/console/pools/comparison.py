"""The rebalance policies of a pool, replayed on its last days and compared. Operators only."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.console.pools.pools import find
from apps.console.shell.page_access import page
from apps.forecasts.provided import replay_pool
from apps.quotas.models.pool import RebalancePolicy
from apps.quotas.principals import Principal
from gpucloud.errors import Busy

PERIODS = (1, 7, 30)


@require_GET
@page
def compare_policies(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show the choice of a period, and what each policy would have lent in it."""
    principal.require_operator()
    pool = find(name)
    shown: dict[str, Any] = {"pool": pool, "periods": PERIODS}
    days = request.GET.get("days", "")
    if days in map(str, PERIODS):
        try:
            replay = replay_pool(pool, days=int(days))
        except Busy as error:
            return render(request, "pools/comparison.html", {**shown, "busy": error.detail}, status=429)
        names = dict(RebalancePolicy.choices)
        rows = [{**row, "label": names[row["policy"]]} for row in replay["policies"]]
        shown |= {"replay": replay, "rows": rows, "days": int(days)}
    return render(request, "pools/comparison.html", shown)
