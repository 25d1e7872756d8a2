"""Pages that set a tenant's limits: members' limits, limit ranges and budgets. Three kinds, the same views."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_POST

from apps.console.shell.forms import posted_versions
from apps.console.shell.page_access import page
from apps.console.tenants import bound_labels
from apps.console.tenants.bound_forms import (
    BoundForm,
    BudgetForm,
    LimitForm,
    NewBudgetForm,
    NewLimitForm,
    NewRangeForm,
    RangeForm,
)
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import AuditEvent, Budget, LimitRange, MemberLimit, Role, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import budgets, limit_ranges, member_limits
from apps.scheduling.services.previews.quota_changes import preview_of_bounds
from gpucloud.errors import GpucloudError, PreconditionFailed

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of limit: its rows, its role, its forms, its services, and its descriptions."""

    model: type[Any]
    # The services' parameter name of the row.
    named: str
    object_type: str
    # The least role that sets it; none: operators only.
    role: Role | None
    new_form: type[BoundForm]
    form: type[BoundForm]
    create: Callable[..., Any]
    change: Callable[..., Any]
    delete: Callable[..., None]
    describe: Callable[[Any], str]
    effects: Callable[[Any], list[bound_labels.Effect]]
    title: "StrPromise"
    what: "StrPromise"

    def require(self, principal: Principal, tenant: Tenant) -> None:
        """Check that the caller may set it. Raises RoleMissing."""
        if self.role is None:
            principal.require_operator()
        else:
            principal.require_role(tenant, self.role)

    def find(self, principal: Principal, pk: int) -> Any:
        """Return the row. Raises Http404 if it is missing or not the caller's."""
        row = self.model.objects.visible_to(principal).select_related("tenant").filter(pk=pk).first()
        if row is None:
            raise Http404("There is no such limit that you may see.")
        return row


KINDS: Final = {
    "member-limits": Kind(
        MemberLimit, "row", "member-limit", Role.ADMIN, NewLimitForm, LimitForm,
        member_limits.create_limit, member_limits.change_limit, member_limits.delete_limit,
        bound_labels.describe_limit, bound_labels.limits_effects,
        _("A limit for members"), _("How much of the tenant’s quota one member may hold"),
    ),
    "limit-ranges": Kind(
        LimitRange, "row", "limit-range", None, NewRangeForm, RangeForm,
        limit_ranges.create_range, limit_ranges.change_range, limit_ranges.delete_range,
        bound_labels.describe_range, bound_labels.ranges_effects,
        _("A range for claims"), _("What one claim may ask for, and what it gets where it does not say"),
    ),
    "budgets": Kind(
        Budget, "budget", "budget", None, NewBudgetForm, BudgetForm,
        budgets.create_budget, budgets.change_budget, budgets.delete_budget,
        bound_labels.describe_budget, bound_labels.budgets_effects,
        _("A budget"), _("GPU-hours that the tenant may reserve; once they are spent, nothing new is granted"),
    ),
}  # fmt: skip


@require_http_methods(["GET", "POST"])
@page
def new_bound(request: HttpRequest, principal: Principal, slug: str, kind: str) -> HttpResponse:
    """Set a new limit, or preview it."""
    of, tenant = KINDS[kind], find_tenant(principal, slug)
    of.require(principal, tenant)
    form = of.new_form(request.POST or None, tenant=tenant)

    def act() -> Any:
        return of.create(principal=principal, tenant=tenant, **form.values)

    shown, done = _handle_post(request, of, form, act)
    if done:
        return redirect("limits", slug=slug)
    return _context(request, of, form, shown)


@require_http_methods(["GET", "POST"])
@page
def bound_detail(request: HttpRequest, principal: Principal, pk: int, kind: str) -> HttpResponse:
    """Change a limit, or preview the change."""
    of = KINDS[kind]
    row = of.find(principal, pk)
    of.require(principal, row.tenant)
    form = of.form(request.POST or None, tenant=row.tenant, row=row)

    def act() -> Any:
        return of.change(principal=principal, versions=form.versions, **{of.named: row}, **form.values)

    try:
        shown, done = _handle_post(request, of, form, act)
    except PreconditionFailed:
        shown, done = _resolve_conflict(of, row, form), False
    if done:
        return redirect("limits", slug=row.tenant.slug)
    row = of.find(principal, pk)
    shown |= {"row": row, "said": of.describe(row), "now": [] if "preview" in shown else of.effects(row)}
    return _context(request, of, form, shown)


@require_POST
@page
def remove_bound(request: HttpRequest, principal: Principal, pk: int, kind: str) -> HttpResponse:
    """Remove a limit, in the version that the reader saw."""
    of = KINDS[kind]
    row = of.find(principal, pk)
    of.require(principal, row.tenant)
    said = of.describe(row)
    try:
        of.delete(principal=principal, versions=posted_versions(request), **{of.named: row})
    except PreconditionFailed:
        messages.error(request, gettext("Somebody changed it while you had this page open; this is how it is now."))
    else:
        messages.success(request, gettext("Removed: {0}.").format(said))
    return redirect("limits", slug=row.tenant.slug)


def _handle_post(
    request: HttpRequest, of: Kind, form: BoundForm, act: Callable[[], Any]
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if it was done. Raises PreconditionFailed."""
    if request.method != "POST" or not form.is_valid():
        return {}, False
    try:
        if request.POST.get("act") == "preview":
            effect = preview_of_bounds(act, tenant=form.tenant)
            claims = [*effect["runnable"], *effect["pending"]]
            effect["effects"] = of.effects(effect["row"])
            return {"preview": effect, "changes_queue": any(claim["changed"] for claim in claims)}, False
        done = act()
    except PreconditionFailed:
        raise
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, gettext("Set: {0}.").format(of.describe(done)))
    return {}, True


def _context(request: HttpRequest, of: Kind, form: BoundForm, shown: dict[str, Any]) -> HttpResponse:
    refused = form.is_bound and not form.is_valid()
    shown |= {"form": form, "tenant": form.tenant, "title": of.title, "what_for": of.what}
    return render(request, "limits/bound.html", shown, status=422 if refused else 200)


def _resolve_conflict(of: Kind, row: Any, form: BoundForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new version."""
    row.refresh_from_db()
    events = AuditEvent.objects.filter(object_type=of.object_type, object_id=str(row.pk)).order_by("-pk")
    form.data = {**dict(form.data.items()), "version": str(row.version)}
    return {"conflict": events.first()}
