"""Objects of acme's behind the routes of this app, and their paths."""

from datetime import date
from decimal import Decimal
from typing import Any

from apps.quotas.models import QuotaRequest
from apps.quotas.principals import SYSTEM
from apps.quotas.services import budgets, limit_ranges, member_limits, organisations, prices, requests, tenants
from tests.cast import MODEL, Cast, give

MORE: dict[str, Any] = {
    "tenant": "acme",
    "pool": "default",
    "resource": "gpus",
    "amount": 2,
    "reason": "a larger model",
}


def make_money(cast: Cast) -> dict[str, str]:
    """Create a budget, a price, and quota requests, open and with an offer. Return their paths, by route."""
    budget = budgets.create_budget(principal=SYSTEM, tenant=cast.acme, period="month", gpu_hours=Decimal(1000))
    give(cast.acme, pool=cast.pool, gpus=8)
    asked = {**MORE, "tenant": cast.acme, "pool": cast.pool}
    opened, countered, requested = (requests.ask(principal=SYSTEM, **asked) for _ in range(3))
    QuotaRequest.objects.filter(pk=requested.pk).update(state="requested")
    requests.counter(principal=SYSTEM, request=countered, amount=1)
    price = prices.set_price(
        principal=SYSTEM, gpu_model=MODEL, pool=None, valid_from=date(2026, 1, 1), per_gpu_hour=Decimal(2)
    )
    return {
        "budgets/<int:pk>/": f"budgets/{budget.pk}/",
        "prices/<int:pk>/": f"prices/{price.pk}/",
        **{
            f"quota-requests/<uuid:uid>/{verb}": f"quota-requests/{opened.uid}/{verb}"
            for verb in ("", "approve/", "deny/", "counter/", "withdraw/")
        },
        "quota-requests/<uuid:uid>/forward/": f"quota-requests/{requested.uid}/forward/",
        "quota-requests/<uuid:uid>/accept/": f"quota-requests/{countered.uid}/accept/",
    }


def make_limits(cast: Cast) -> dict[str, str]:
    limit_range = limit_ranges.create_range(
        principal=SYSTEM, tenant=cast.acme, pool=None, field="time_limit_seconds", minimum=1
    )
    member_limit = member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=None, resource="gpus", hard=1000)
    return {
        "limit-ranges/<int:pk>/": f"limit-ranges/{limit_range.pk}/",
        "member-limits/<int:pk>/": f"member-limits/{member_limit.pk}/",
    }


def make_organisation(cast: Cast) -> dict[str, str]:
    """Put acme into a department with a quota, and make an empty one. Return the paths, by route."""
    top = organisations.create_organisation(principal=SYSTEM, slug="university", name="University")
    department, _ = (
        organisations.create_organisation(principal=SYSTEM, slug=slug, name=slug, parent=top)
        for slug in ("physics", "empty")
    )
    tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=department)
    quota = organisations.create_quota(
        principal=SYSTEM, organisation=department, pool=None, resource="core_percent", hard=100_000
    )
    return {
        "organisations/<slug:slug>/": "organisations/physics/",
        "organisation-quotas/<int:pk>/": f"organisation-quotas/{quota.pk}/",
    }
