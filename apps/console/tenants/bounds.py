"""Pages that set a tenant's limits: members' limits, limit ranges and budgets. Three kinds, the same pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.accounting.services.quota_changes import preview_of_bounds
from apps.console.shell.form_page import FormPage, Link
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
from apps.quotas.models import Budget, LimitRange, MemberLimit, Role, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import budgets, limit_ranges, member_limits
from gpucloud.errors import PreconditionFailed

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
        _("New member limit"), _("Part of the tenant’s quota that one member can use"),
    ),
    "limit-ranges": Kind(
        LimitRange, "row", "limit-range", None, NewRangeForm, RangeForm,
        limit_ranges.create_range, limit_ranges.change_range, limit_ranges.delete_range,
        bound_labels.describe_range, bound_labels.ranges_effects,
        _("New limit range"), _("Bounds and defaults of one claim"),
    ),
    "budgets": Kind(
        Budget, "budget", "budget", None, NewBudgetForm, BudgetForm,
        budgets.create_budget, budgets.change_budget, budgets.delete_budget,
        bound_labels.describe_budget, bound_labels.budgets_effects,
        _("New budget"), _("GPU-hours that the tenant can allocate; once they are spent, new claims are refused"),
    ),
}  # fmt: skip


class BoundPage(FormPage):
    """A new limit, or the change of one; `kind` in the route says which."""

    template_name, preview_template = "limits/bound.html", "tenants/_preview.html"

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Take the texts of the kind of limit."""
        super().setup(request, *args, **kwargs)
        self.subtitle, self.object_type = self.kind.what, self.kind.object_type

    @property
    def kind(self) -> Kind:
        """The kind of limit."""
        return KINDS[self.kwargs["kind"]]

    @property
    def tenant(self) -> Tenant:
        """The tenant that is limited."""
        tenant: Tenant = self.row if isinstance(self.row, Tenant) else self.row.tenant
        return tenant

    def authorize(self) -> None:
        """Refuse readers who may not set it."""
        self.kind.require(self.principal, self.tenant)

    def preview(self, form: BoundForm) -> dict[str, Any]:
        """Return the effect of the limit."""
        effect = preview_of_bounds(lambda: self.act(form), tenant=self.tenant)
        claims = [*effect["runnable"], *effect["pending"]]
        effect["effects"] = self.kind.effects(effect["row"])
        return {"preview": effect, "changes_queue": any(claim["changed"] for claim in claims), "now": []}

    def finish(self, form: BoundForm, done: Any) -> HttpResponse:
        """Return to the tenant's limits."""
        self.say(gettext("Set: {0}.").format(self.kind.describe(done)))
        return super().finish(form, done)

    @property
    def heading(self) -> str:
        """The title of the page."""
        return str(self.kind.title)

    @property
    def crumbs(self) -> list[Link]:
        """The tenant and its limits."""
        slug = self.tenant.slug
        return [(reverse("tenant", args=[slug]), slug), (reverse("limits", args=[slug]), gettext("Limits and budgets"))]


class NewBound(BoundPage):
    """A new limit."""

    submit = _("Create")

    def find(self) -> Tenant:
        """Return the tenant."""
        return find_tenant(self.principal, self.kwargs["slug"])

    def form(self, data: Any = None) -> BoundForm:
        """Return the form of a new limit."""
        return self.kind.new_form(data, tenant=self.tenant)

    def act(self, form: BoundForm) -> Any:
        """Create the limit."""
        return self.kind.create(principal=self.principal, tenant=self.tenant, **form.values)


class ChangeBound(BoundPage):
    """The change of a limit."""

    def find(self) -> Any:
        """Return the limit."""
        return self.kind.find(self.principal, self.kwargs["pk"])

    def form(self, data: Any = None) -> BoundForm:
        """Return the form with the limit's values."""
        return self.kind.form(data, tenant=self.tenant, row=self.row)

    def act(self, form: BoundForm) -> Any:
        """Change the limit."""
        row = {self.kind.named: self.row}
        return self.kind.change(principal=self.principal, versions=form.versions, **row, **form.values)

    def describe(self) -> str:
        """Return the limit in words."""
        return self.kind.describe(self.row)

    @property
    def heading(self) -> str:
        """The limit in words, as it is."""
        return self.kind.describe(self.find())

    def more_context(self) -> dict[str, Any]:
        """Return the present effects."""
        return {"now": self.kind.effects(self.find())}


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
