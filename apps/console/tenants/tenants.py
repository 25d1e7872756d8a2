"""Pages of tenants: the list by pressure, and one tenant with its quotas, people and tokens."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.db import transaction
from django.db.models import Count, Exists, ExpressionWrapper, F, FloatField, Max, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, NullIf
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.accounting.services.reports import usage_report
from apps.console.access import tokens
from apps.console.shell.amounts import MemoryField
from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.fields import one_of
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import ServiceForm, name_field
from apps.console.shell.forms import number as number_field
from apps.console.shell.lists.columns import SavedView, column, number
from apps.console.shell.lists.filters import Flag, ListFilter, Search, Text
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page, wants_fragment
from apps.console.tenants.people import MemberForm
from apps.quotas.models import Organisation, Resource, ResourceQuota, Role, Tenant, Token
from apps.quotas.models.resource import MOST_AMOUNT
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from apps.quotas.services import quotas, tenants
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED, WAITING
from gpucloud.web.keyset import Key

QUOTAS = ["resource", "pool", "hard", "used", "borrowed", "lent", "free", "excess"]
MEMBERS = ["person", "role"]
# Percent of a tenant's fullest quota.
FULLEST = Subquery(
    ResourceQuota.objects.filter(tenant=OuterRef("pk"), hard__gt=0)
    .order_by()
    .values("tenant")
    .annotate(fullest=Max(ExpressionWrapper(100.0 * F("used") / F("hard"), output_field=FloatField())))
    .values("fullest")
)


class NewTenantForm(ServiceForm):
    """A new tenant."""

    slug = forms.CharField(
        label=_("Short name"),
        max_length=63,
        help_text=_("In URLs and commands: a–z, 0–9 and hyphens. It cannot be changed later."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "physics"}),
        validators=[RegexValidator(SLUG)],
    )
    name = name_field("Physics")
    weight = forms.IntegerField(
        label=_("Weight"),
        min_value=1,
        max_value=1000,
        initial=1,
        help_text=_("Its part of what is scarce, against the other tenants’ weights."),
        widget=forms.NumberInput(attrs={"class": "form-control"}),
    )
    cohort = forms.CharField(
        label=_("Cohort"),
        required=False,
        max_length=63,
        help_text=_("Tenants of one cohort lend each other what is idle of their quotas. Empty: none."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"}),
        validators=[RegexValidator(SLUG)],
    )
    organisation = one_of(
        _("Organisation"), Organisation.objects.order_by("slug"), "slug", _("Its quotas count what the tenant holds."),
        required=False, empty_label=_("None"),
    )  # fmt: skip
    remote = forms.BooleanField(
        label=_("Remote shares"),
        required=False,
        help_text=_("Its programs on other machines may use its claims, in pools that allow it."),
        widget=forms.CheckboxInput(attrs={"class": "form-check-input"}),
    )
    core_percent = number_field(
        _("Core quota"), most=MOST_AMOUNT, required=False,
        help_text=_("In all pools; 100 percent are one GPU’s compute. Empty: none yet, so nothing can be claimed."),
    )  # fmt: skip
    memory_mib = MemoryField(label=_("Memory quota"), most=MOST_AMOUNT, required=False, help_text=_("In all pools."))
    field_order = ("slug", "name", "organisation", "core_percent", "memory_mib", "weight", "cohort", "remote")

    @property
    def quotas(self) -> dict[Resource, int]:
        """The first quotas, by resource."""
        given = {resource: self.cleaned_data[resource] for resource in (Resource.CORE_PERCENT, Resource.MEMORY_MIB)}
        return {resource: amount for resource, amount in given.items() if amount is not None}


class TenantFilter(ListFilter):
    """The filters of tenants."""

    q = Search("slug", "name", placeholder=_("name or slug"))
    cohort = Text(_("Cohort"), "cohort")
    waiting = Flag(_("With waiting claims"), Exists(Claim.objects.filter(tenant=OuterRef("pk"), state__in=WAITING)))


class TenantList(ListPage):
    """The visible tenants, those with the fullest quotas first."""

    model, filters, template_name = Tenant, TenantFilter, "tenants/list.html"
    title, subtitle = _("Tenants"), _("Quota usage by tenant, highest first")
    first = (Key(FULLEST, descending=True), Key(F("natural_name")))
    columns = [
        column(_("Tenant"), "slug", Key(F("natural_name"), nullable=False)),
        column(_("Highest quota usage"), "pressure", FULLEST, F("natural_name")),
        number(_("Running")),
        number(_("Waiting")),
        column(_("Cohort"), "cohort", "cohort", F("natural_name"), css="wide", word="cohort"),
        number(_("Weight"), "weight", "weight", css="wide num", word="weight"),
    ]
    views = [SavedView(_("All")), SavedView(_("With waiting claims"), "waiting=1")]
    file = ("tenants", ["tenant", "name", "cohort", "weight", "pressure_percent", "running", "waiting"])

    def with_details(self, rows: Any) -> Any:
        """Add pressure and counts of claims."""
        return annotate_pressure(rows)

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the fullest quotas of each."""
        quotas: dict[int, list[ResourceQuota]] = {}
        for quota in _order_by_pressure(ResourceQuota.objects.filter(tenant__in=rows)):
            quotas.setdefault(quota.tenant_id, []).append(quota)
        return [{"tenant": tenant, "quotas": quotas.get(tenant.pk, [])[:3]} for tenant in rows]

    def facts(self, row: Any) -> Any:
        """Return the tenant with its pressure."""
        pressure = None if row.pressure is None else round(row.pressure, 2)
        return facts_of(row, self.file[1], tenant=row.slug, pressure_percent=pressure)


def annotate_pressure(rows: QuerySet[Tenant]) -> QuerySet[Tenant]:
    """Return tenants with `pressure` (percent of their fullest quota), `running` and `waiting` claims."""
    return rows.annotate(pressure=FULLEST, running=_count(PLACED), waiting=_count(WAITING))


def _count(states: Any) -> Coalesce:
    claims = Claim.objects.filter(tenant=OuterRef("pk"), state__in=states).order_by().values("tenant")
    return Coalesce(Subquery(claims.annotate(number=Count("pk")).values("number")), 0)


def _order_by_pressure(quotas: QuerySet[ResourceQuota]) -> QuerySet[ResourceQuota]:
    # A hard limit of zero must not be a divisor.
    percent = ExpressionWrapper(100.0 * F("used") / NullIf(F("hard"), 0), output_field=FloatField())
    rows = quotas.select_related("tenant", "pool", "share").annotate(percent=percent)
    return rows.order_by(F("percent").desc(nulls_last=True), "pk")


@require_GET
@page
def tenant_detail(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show one tenant, its live fragment, or one of its tables as a file."""
    tenant = find(principal, slug)
    quotas = _order_by_pressure(ResourceQuota.objects.filter(tenant=tenant))
    shown: dict[str, Any] = {
        "tenant": tenant,
        "quotas": quotas,
        "may_claim": principal.is_operator or tenant.pk in principal.with_role("member"),
        "may_administer": principal.is_operator or tenant.pk in principal.with_role("admin"),
    }
    if wants_fragment(request):
        return render(request, "tenants/_quotas.html", shown)
    alive = Token.objects.visible_to(principal).filter(tenant=tenant).alive()
    tables: dict[str, tuple[list[str], QuerySet[Any], Callable[[Any], dict[str, Any]]]] = {
        "quotas": (QUOTAS, quotas, _quota_facts),
        "members": (MEMBERS, tenant.memberships.select_related("user").order_by("user__username"), _member_facts),
        "tokens": (tokens.COLUMNS, alive.with_makers().order_by("-pk"), tokens.facts),
    }
    if file := file_format(request):
        table = request.GET.get("table", "")
        name = table if table in tables else "quotas"
        columns, rows, facts = tables[name]
        return as_file(file, f"{slug}-{name}", columns, map(facts, rows))
    shown |= {name: rows for name, (_, rows, _) in tables.items()}
    shown |= {"member_form": MemberForm(), "roles": Role.choices}
    return render(request, "tenants/tenant.html", shown)


def _quota_facts(quota: ResourceQuota) -> dict[str, Any]:
    return {name: getattr(quota, name) for name in QUOTAS} | {"pool": quota.pool and quota.pool.name}


def _member_facts(membership: Any) -> dict[str, Any]:
    return {"person": membership.user.get_username(), "role": membership.role}


@require_GET
@page
def tenant_hours(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Render the fragment of the tenant's GPU-hours of this month, and their cost, from the ledger."""
    tenant, now = find(principal, slug), timezone.now()
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    report = usage_report(tenants=[tenant], begin=begin, end=now)
    return render(request, "tenants/_hours.html", {"report": report, "tenant": tenant})


def find(principal: Principal, slug: str) -> Tenant:
    """Return the tenant as `annotate_pressure` annotates it. Raises Http404 if it is missing or not the caller's."""
    tenant = annotate_pressure(Tenant.objects.visible_to(principal)).filter(slug=slug).first()
    if tenant is None:
        raise Http404("There is no such tenant that you may see.")
    return tenant


class NewTenant(FormPage):
    """A new tenant, with its first quotas."""

    title, subtitle = _("New tenant"), _("A team, a course or a customer, and what it can claim at most")
    form_class, submit, operators_only = NewTenantForm, _("Create tenant"), True
    parent = ("tenants", _("Tenants"))

    def act(self, form: NewTenantForm) -> Tenant:
        """Create the tenant and its quotas, or nothing."""
        values = {name: value for name, value in form.cleaned_data.items() if name not in Resource.values}
        values["cohort"] = values["cohort"] or None
        with transaction.atomic():
            tenant = tenants.create_tenant(principal=self.principal, **values)
            for resource, hard in form.quotas.items():
                quotas.create_quota(principal=self.principal, tenant=tenant, pool=None, resource=resource, hard=hard)
        return tenant

    def finish(self, form: NewTenantForm, done: Tenant) -> HttpResponse:
        """Lead to the tenant."""
        return redirect("tenant", slug=done.slug)
