"""The page of a tenant's limits beside its quotas: of members, of single claims, and budgets."""

from collections import Counter
from typing import Any, Final

from django.core.paginator import Paginator
from django.db.models import F
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.console.shell.export import as_file, file_format
from apps.console.shell.page_access import page
from apps.console.tenants.bound_labels import FIELDS, MOST_HOLDERS, PERIODS, Members, hours, value_of
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import Budget, LimitRange, MemberLimit, Role, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import member_limits
from apps.scheduling.services.charging.budgets import Standing, counted_standing

PER_PAGE: Final = 50
# From this percentage on the end of a budget is announced; see `charging.budgets.THRESHOLDS`.
NEARLY_PERCENT: Final = 80
COLUMNS: Final = {
    "members": ["member", "resource", "hard", "most_held", "members_over"],
    "ranges": ["field", "pool", "minimum", "default", "maximum"],
    "budgets": ["period", "starts_at", "ends_at", "gpu_hours", "gpu_hours_spent", "percent", "as_of", "when_spent"],
}


@require_GET
@page
def limits(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show the three tables, or one of them as a file; to members their own limits first."""
    tenant = find_tenant(principal, slug)
    of_members, members = _member_limits(tenant), Members(tenant)
    ranges = list(tenant.limit_ranges.select_related("pool").order_by("field", F("pool__name").asc(nulls_first=True)))
    budgets = [(row, _standing(row)) for row in tenant.budgets.prefetch_related("periods").order_by("period", "pk")]
    if file := file_format(request):
        table = request.GET.get("table", "")
        name = table if table in COLUMNS else "members"
        rows = {
            "members": (_limit_facts(row, members) for row in of_members),
            "ranges": map(_range_facts, ranges),
            "budgets": (_budget_facts(row, standing) for row, standing in budgets),
        }
        return as_file(file, f"{slug}-{name}", COLUMNS[name], rows[name])
    part = Paginator(of_members, PER_PAGE).get_page(request.GET.get("page"))
    shown: dict[str, Any] = {
        "tenant": tenant,
        "may_administer": principal.is_operator or tenant.pk in principal.with_role(Role.ADMIN),
        "part": part,
        "limits": [_limit_row(row, members) for row in part.object_list],
        "ranges": [_range_row(row) for row in ranges],
        "budgets": [_budget_row(row, standing) for row, standing in budgets],
        "nearly": NEARLY_PERCENT,
        "yours": yours(principal, tenant),
    }
    return render(request, "limits/limits.html", shown)


def _member_limits(tenant: Tenant) -> Any:
    """Return the limits, those for all members first."""
    rows = MemberLimit.objects.filter(tenant=tenant).select_related("user")
    return rows.order_by(F("user__username").asc(nulls_first=True), "resource")


def _limit_row(row: MemberLimit, members: Members) -> dict[str, Any]:
    """Return a row of the table: the limit, its largest holders, and the number of further ones."""
    holders = members.holders(row)
    gone = row.user_id is not None and row.user_id not in members.names
    return {"row": row, "holders": holders[:MOST_HOLDERS], "more": max(0, len(holders) - MOST_HOLDERS), "gone": gone}


def _range_row(row: LimitRange) -> dict[str, Any]:
    said = {name: value_of(row.field, getattr(row, name)) for name in ("minimum", "default", "maximum")}
    return {"row": row, "field": FIELDS[row.field], **said}


def yours(principal: Principal, tenant: Tenant) -> list[dict[str, Any]] | None:
    """Return the reader's limits, held and left, by resource; None to readers without claims of their own there."""
    if principal.user_id is None or tenant.pk not in principal.with_role(Role.MEMBER):
        return None
    bounds = member_limits.limits_of(tenant, principal.user_id)
    held = member_limits.amounts_held(tenant, principal.user_id) if bounds else Counter[str]()
    return [
        {"resource": name, "hard": hard, "held": held[name], "left": max(0, hard - held[name])}
        for name, hard in bounds.items()
    ]


def _budget_row(row: Budget, standing: Standing | None) -> dict[str, Any]:
    """Return a row of the table; a new budget is counted within a minute, and until then shows no amount."""
    known = standing is not None and (standing.as_of > standing.starts_at or standing.percent >= 100)
    spent = hours(standing.gpu_hours_spent) if standing and known else None
    period = next((one for one in row.periods.all() if standing and one.starts_at == standing.starts_at), None)
    return {"row": row, "period": PERIODS[row.period], "standing": standing, "spent": spent, "counted": period}


def _standing(row: Budget) -> Standing | None:
    return counted_standing(row, now=timezone.now())


def _limit_facts(row: MemberLimit, members: Members) -> dict[str, Any]:
    holders = members.holders(row)
    return {
        "member": row.user and row.user.get_username(),
        "resource": row.resource,
        "hard": row.hard,
        "most_held": max((one.held for one in holders), default=0),
        "members_over": sum(one.over for one in holders),
    }


def _range_facts(row: LimitRange) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS["ranges"]} | {"pool": row.pool and row.pool.name}


def _budget_facts(row: Budget, standing: Standing | None) -> dict[str, Any]:
    """Return the row for a file, with the times of the present period."""
    times = standing or row
    return {
        "period": row.period,
        "starts_at": times.starts_at,
        "ends_at": times.ends_at,
        "gpu_hours": row.gpu_hours,
        "gpu_hours_spent": standing and standing.gpu_hours_spent,
        "percent": standing and standing.percent,
        "as_of": standing and standing.as_of,
        "when_spent": row.when_spent,
    }
