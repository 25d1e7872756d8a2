"""The page of one quota: its values, the preview of a change, and its ledger."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.shell.export import as_file, file_format
from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import AuditEvent, LedgerEntry, Pool, Resource, ResourceQuota, Role, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import quotas
from apps.scheduling.models import Claim
from apps.scheduling.services.previews.quota_changes import preview
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.keyset import keyset_page

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# More steps than a chart has pixels show nothing more.
MOST_CHANGES = 1000
MOST = (1 << 63) - 1
LEDGER = ["at", "kind", "amount", "used", "hard", "claim_uid", "actor"]
RESOURCES: Final = [
    (Resource.CORE_PERCENT.value, _("Core, percent")),
    (Resource.MEMORY_MIB.value, _("Memory, MiB")),
    (Resource.VGPUS.value, _("vGPUs")),
    (Resource.GPUS.value, _("Whole GPUs")),
]
# Inside a sentence; `tenants/_resource.html` has the same names.
RESOURCE_WORDS: Final = {
    "core_percent": _("core"),
    "memory_mib": _("memory"),
    "vgpus": _("vGPUs"),
    "gpus": _("whole GPUs"),
    "gpu_hours": _("GPU-hours"),
}
RESOURCES_SAID: Final = _("Core: 100 percent are one GPU’s compute. vGPUs: pieces of GPUs.")


def amount(label: "StrPromise", help_text: "StrPromise") -> forms.IntegerField:
    """Return a field for an amount, or for none."""
    return forms.IntegerField(
        label=label,
        required=False,
        min_value=0,
        max_value=MOST,
        help_text=help_text,
        widget=forms.NumberInput(attrs={"class": "form-control", "inputmode": "numeric"}),
    )


class QuotaForm(ServiceForm):
    """The numbers that an operator sets."""

    hard = amount(_("Quota"), _("What the tenant may hold. Empty: unlimited; 0: none."))
    borrowing_limit = amount(_("May borrow"), _("Above the quota, while its cohort has idle quota. Empty: all of it."))
    lending_limit = amount(_("Lends"), _("Of the quota, to its cohort while idle. Empty: all of it."))
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    @property
    def numbers(self) -> dict[str, int | None]:
        """The arguments for the service."""
        return {name: self.cleaned_data[name] for name in quotas.SETTABLE}

    @property
    def fields_shown(self) -> list[forms.BoundField]:
        """The visible fields."""
        return self.visible_fields()


class NewQuotaForm(QuotaForm):
    """A new quota."""

    resource = forms.ChoiceField(
        label=_("Resource"),
        choices=RESOURCES,
        help_text=RESOURCES_SAID,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        to_field_name="name",
        required=False,
        empty_label=_("All pools together"),
        help_text=_("Where both are set, a claim is charged to both."),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    field_order = ("resource", "pool")


@require_http_methods(["GET", "POST"])
@page
def quota_detail(request: HttpRequest, principal: Principal, pk: int) -> HttpResponseBase:
    """Show the quota; with its form for operators. A post with `preview` changes nothing."""
    quota = find(principal, pk)
    entries = LedgerEntry.objects.filter(tenant=quota.tenant, pool=quota.pool, resource=quota.resource).order_by("-pk")
    if file := file_format(request):
        return as_file(file, f"ledger-{quota.pk}", LEDGER, entries.values(*LEDGER).iterator())
    form = QuotaForm(request.POST or None, initial=_initial(quota))
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _handle_post(request, principal, quota, form)
        if done:
            return redirect("quota", pk=quota.pk)
    if principal.is_operator:
        shown["form"] = form
    quota = find(principal, pk)
    # An unlimited quota cannot be raised.
    shown["may_ask"] = quota.hard is not None and quota.tenant_id in principal.with_role(Role.ADMIN)
    part = keyset_page(entries, request.GET)
    uids = {entry.claim_uid for entry in part.rows if entry.claim_uid}
    names = dict(Claim.objects.filter(uid__in=uids).values_list("uid", "name"))
    rows = [(entry, entry.claim_uid and names.get(entry.claim_uid)) for entry in part.rows]
    refused = form.is_bound and not form.is_valid()
    return render(
        request,
        "tenants/quota.html",
        {**shown, "quota": quota, "entries": rows, "part": part, "chart": history(quota, entries)},
        status=422 if refused else 200,
    )


def history(quota: ResourceQuota, entries: QuerySet[LedgerEntry]) -> dict[str, Any] | None:
    """Return the data of the quota's chart: `used` and `hard` after each of the last changes. None without any."""
    rows = list(entries.values_list("at", "used", "hard")[:MOST_CHANGES])[::-1]
    if not rows:
        return None
    # Memory is shown in GiB.
    size = 1024 if quota.resource == Resource.MEMORY_MIB else 1
    now = timezone.now()
    rows.append((now, quota.used, quota.hard))
    series = {
        "key": "quota",
        "times": [at.timestamp() for at, _, _ in rows],
        "used": [used / size for _, used, _ in rows],
        "hard": [None if hard is None else hard / size for _, _, hard in rows],
    }
    seconds = max(60.0, (now - rows[0][0]).total_seconds())
    return {"now": now.timestamp(), "window_seconds": seconds, "series": [series], "marks": []}


def _handle_post(
    request: HttpRequest, principal: Principal, quota: ResourceQuota, form: QuotaForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    principal.require_operator()
    version = form.cleaned_data["version"]
    versions = None if version is None else frozenset({version})

    def act() -> ResourceQuota:
        return quotas.change_quota(principal=principal, quota=quota, versions=versions, **form.numbers)

    try:
        if request.POST.get("act") == "preview":
            return preview_change(act, quota.tenant), False
        act()
    except PreconditionFailed:
        return _resolve_conflict(quota, form), False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, gettext("The quota of {0} is changed.").format(quota.tenant))
    return {}, True


def preview_change(act: Callable[[], ResourceQuota | None], tenant: Tenant) -> dict[str, Any]:
    """Return the effect of the change, and whether it changes the start of any waiting claim."""
    effect = preview(act, tenant=tenant, show=lambda row: {"quota": row})
    claims = [*effect["runnable"], *effect["pending"]]
    return {"preview": effect, "changes_queue": any(claim["changed"] for claim in claims)}


def _resolve_conflict(quota: ResourceQuota, form: QuotaForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new version."""
    quota.refresh_from_db()
    events = AuditEvent.objects.filter(object_type="quota", object_id=str(quota.pk)).order_by("-pk")
    form.data = {**dict(form.data.items()), "version": str(quota.version)}
    return {"conflict": events.first(), "now": {name: getattr(quota, name) for name in quotas.SETTABLE}}


@require_http_methods(["GET", "POST"])
@page
def new_quota(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Create a quota, or preview it."""
    principal.require_operator()
    tenant = find_tenant(principal, slug)
    form = NewQuotaForm(request.POST or None)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        values = form.numbers | {name: form.cleaned_data[name] for name in ("resource", "pool")}
        try:
            if request.POST.get("act") != "preview":
                return redirect("quota", pk=_create(principal, tenant, values).pk)
            shown = preview_change(lambda: _create(principal, tenant, values), tenant)
        except GpucloudError as error:
            form.refuse(error)
    refused = form.is_bound and not form.is_valid()
    shown |= {"form": form, "tenant": tenant}
    return render(request, "tenants/new_quota.html", shown, status=422 if refused else 200)


def _create(principal: Principal, tenant: Tenant, values: dict[str, Any]) -> ResourceQuota:
    return quotas.create_quota(principal=principal, tenant=tenant, **values)


def find(principal: Principal, pk: int) -> ResourceQuota:
    """Return the quota with its tenant, pool and share. Raises Http404 if it is missing or not the caller's."""
    rows = ResourceQuota.objects.visible_to(principal).select_related("tenant", "pool", "share")
    quota = rows.filter(pk=pk).first()
    if quota is None:
        raise Http404("There is no such quota that you may see.")
    return quota


def _initial(quota: ResourceQuota) -> dict[str, Any]:
    return {name: getattr(quota, name) for name in quotas.SETTABLE} | {"version": quota.version}
