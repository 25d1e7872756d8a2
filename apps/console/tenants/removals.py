"""The removal of a tenant or a quota, after a page with its obstacles and effects."""

from typing import Any, Final

from django.contrib import messages
from django.db.models import PROTECT
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.shell.forms import describe_error, posted_versions
from apps.console.shell.page_access import page
from apps.console.tenants.quotas import find as find_quota
from apps.console.tenants.quotas import preview_change
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import ResourceQuota, Tenant
from apps.quotas.models.resource import ZERO_WITHOUT_ROW, charge_field
from apps.quotas.principals import Principal
from apps.quotas.services import quotas, tenants
from apps.scheduling.models import Claim, Reservation
from gpucloud.errors import GpucloudError, PreconditionFailed

# Obstacles are named up to this number; the rest is counted.
MOST_NAMED: Final = 20
# Rows that keep a tenant for good: the history of use is read for years.
HISTORY: Final = {
    "ledger": _("changes of its quotas"),
    "claims": _("claims"),
    "reservations": _("reservations"),
    "jobs": _("jobs"),
    "job_files": _("files of jobs"),
    "job_arrays": _("arrays of jobs"),
    "used_hours": _("hours of use"),
    "quota_requests": _("requests"),
}
# Rows that an operator can remove first. A quota never stands alone: its first row is in the ledger.
FIRST: Final = {"budgets": _("budgets"), "namespaces": _("namespaces bound to it"), "quotas": _("quotas")}


@require_http_methods(["GET", "POST"])
@page
def remove_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the effect of removing the tenant; remove it if posted."""
    principal.require_operator()
    tenant = find_tenant(principal, slug)
    refusal = ""
    if request.method == "POST":
        try:
            tenants.delete_tenant(principal=principal, tenant=tenant, versions=posted_versions(request))
        except PreconditionFailed:
            refusal = gettext("Somebody changed it while you had this page open; this is how it is now.")
        except GpucloudError as error:
            refusal = describe_error(error)
        else:
            messages.success(request, gettext("Tenant {0} is removed.").format(slug))
            return redirect("tenants")
    there = {name for name in protecting_relations() if getattr(tenant, name).exists()}
    shown = {
        "tenant": find_tenant(principal, slug),
        "history": [words for name, words in HISTORY.items() if name in there],
        "first": [words for name, words in FIRST.items() if name in there],
        "people": tenant.memberships.count(),
        "tokens": tenant.tokens.filter(revoked_at=None).count(),
        "refusal": refusal,
    }
    return render(request, "tenants/remove.html", shown, status=409 if refusal else 200)


def protecting_relations() -> set[str]:
    """Return the relations whose rows prevent the removal of a tenant, by name."""
    relations = Tenant._meta.related_objects  # noqa: SLF001
    return {one.get_accessor_name() or "" for one in relations if one.on_delete is PROTECT}


@require_http_methods(["GET", "POST"])
@page
def remove_quota(request: HttpRequest, principal: Principal, pk: int) -> HttpResponse:
    """Show the effect of removing the quota, or the claims charged to it; remove it if posted."""
    principal.require_operator()
    quota = find_quota(principal, pk)
    tenant, refusal, effect = quota.tenant, "", dict[str, Any]()
    try:
        if request.method == "POST":
            quotas.delete_quota(principal=principal, quota=quota, versions=posted_versions(request))
            messages.success(request, gettext("The quota of {0} is removed.").format(tenant))
            return redirect("tenant", slug=tenant.slug)
        if not quota.used:
            effect = preview_change(lambda: quotas.delete_quota(principal=principal, quota=quota), tenant)
    except PreconditionFailed:
        refusal = gettext("Somebody changed it while you had this page open; this is how it is now.")
    except GpucloudError as error:
        refusal = describe_error(error)
    quota = find_quota(principal, pk)
    shown = {
        **effect,
        "quota": quota,
        "tenant": tenant,
        "refusal": refusal,
        "may": not quota.used,
        **_charged_rows(quota),
    }
    shown["after"] = _after(quota)
    refused = refusal and request.method == "POST"
    return render(request, "tenants/remove_quota.html", shown, status=409 if refused else 200)


def _charged_rows(quota: ResourceQuota) -> dict[str, Any]:
    """Return the claims and reservations that are charged to it."""
    charge = f"{charge_field(quota.resource)}__gt"
    of = {"tenant": quota.tenant, charge: 0} | ({"pool": quota.pool} if quota.pool else {})
    if quota.profile is not None:
        claims, reservations = Claim.objects.filter(profile=quota.profile, **of), Reservation.objects.none()
    else:
        claims, reservations = Claim.objects.filter(**of), Reservation.objects.filter(**of)
    claims = claims.order_by("name")
    more = max(0, claims.count() - MOST_NAMED)
    return {"claims": claims[:MOST_NAMED], "more": more, "reservations": reservations.order_by("name")[:MOST_NAMED]}


def _after(quota: ResourceQuota) -> str:
    """Return in words what limits the tenant in this resource afterwards."""
    others = ResourceQuota.objects.filter(tenant=quota.tenant, resource=quota.resource).exclude(pk=quota.pk)
    if quota.pool and others.filter(pool=None).exists():
        return gettext("What is held in pool {0} is then bounded by the quota for all pools alone.").format(quota.pool)
    if quota.resource not in ZERO_WITHOUT_ROW:
        return gettext("Without it this resource is not limited separately: core and memory alone bound it.")
    if quota.pool:
        return gettext("Without it the tenant can hold nothing in pool {0}: no other quota of this covers it.").format(
            quota.pool
        )
    if others.exists():
        return gettext("The tenant can then hold something only in pools for which it has a quota of their own.")
    return gettext("Without it the tenant can hold nothing: core and memory need a quota each.")
