"""The change of a tenant: its name, its weight, its cohort; with a preview of the latter two."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods

from apps.console.shell.page_access import page
from apps.console.tenants.bound_labels import Effect
from apps.console.tenants.tenants import NewTenantForm
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import AuditEvent, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import tenants
from apps.scheduling.services.previews.quota_changes import preview
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.tags import percent

SETTABLE = ("name", "weight", "cohort")
# A sentence names no more of a cohort's tenants than one reads.
MOST_NAMED = 10


class ChangeForm(NewTenantForm):
    """The changeable fields of a tenant; the short name is in URLs and stays."""

    slug = None  # type: ignore[assignment]
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def changes(self, tenant: Tenant) -> dict[str, Any]:
        """Return the fields that differ from the tenant, for the service."""
        values = {name: self.cleaned_data[name] for name in SETTABLE} | {"cohort": self.cleaned_data["cohort"] or None}
        return {name: value for name, value in values.items() if getattr(tenant, name) != value}


@require_http_methods(["GET", "POST"])
@page
def change_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show and apply the form. A post with `preview` changes nothing."""
    principal.require_operator()
    tenant = find_tenant(principal, slug)
    initial = {name: getattr(tenant, name) for name in SETTABLE} | {"version": tenant.version}
    form = ChangeForm(request.POST or None, initial=initial)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _handle_post(request, principal, tenant, form)
        if done:
            return redirect("tenant", slug=slug)
    refused = form.is_bound and not form.is_valid()
    shown |= {"tenant": find_tenant(principal, slug), "form": form}
    return render(request, "tenants/change.html", shown, status=422 if refused else 200)


def _handle_post(
    request: HttpRequest, principal: Principal, tenant: Tenant, form: ChangeForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    version, changes = form.cleaned_data["version"], form.changes(tenant)
    versions = None if version is None else frozenset({version})

    def act() -> Tenant:
        return tenants.change_tenant(principal=principal, tenant=tenant, versions=versions, **changes)

    try:
        if request.POST.get("act") == "preview":
            effect = preview(act, tenant=tenant, show=lambda _: {}, joins=changes.get("cohort"))
            claims = [*effect["runnable"], *effect["pending"]]
            effect["effects"] = _effects(tenant, changes)
            # Another weight changes the order of the queue, whatever starts.
            moves = "weight" in changes or any(claim["changed"] for claim in claims)
            return {"preview": effect, "changes_queue": moves}, False
        act()
    except PreconditionFailed:
        return _resolve_conflict(tenant, form), False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, gettext("Tenant {0} is changed.").format(tenant))
    return {}, True


def _effects(tenant: Tenant, changes: dict[str, Any]) -> list[Effect]:
    said = []
    if "weight" in changes:
        others = Tenant.objects.exclude(pk=tenant.pk).aggregate(weight=Sum("weight", default=0))["weight"]
        parts = [percent(100 * weight / (others + weight)) for weight in (tenant.weight, changes["weight"])]
        words = gettext(
            "Where all tenants want more, its part of what is scarce is {1} instead of {0}. The queue’s order counts "
            "it from the next round on; what runs stays."
        )
        said.append(("refresh", words.format(*parts)))
    if "cohort" in changes:
        said += [_cohort(name, words) for name, words in _moves(tenant, changes["cohort"])]
    return said


def _moves(tenant: Tenant, cohort: str | None) -> list[tuple[str, str]]:
    left = gettext("It leaves cohort {0} ({1}): they no longer lend each other quota.")
    joined = gettext("It joins cohort {0} ({1}): it and they lend each other what is idle of their quotas.")
    return [(name, words) for name, words in ((tenant.cohort, left), (cohort, joined)) if name]


def _cohort(name: str, words: str) -> Effect:
    slugs = list(Tenant.objects.filter(cohort=name).order_by("slug").values_list("slug", flat=True)[:MOST_NAMED])
    return "building", words.format(name, ", ".join(slugs) or gettext("nobody else yet"))


def _resolve_conflict(tenant: Tenant, form: ChangeForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new version."""
    tenant.refresh_from_db()
    events = AuditEvent.objects.filter(object_type="tenant", object_id=tenant.slug).order_by("-pk")
    form.data = {**dict(form.data.items()), "version": str(tenant.version)}
    now = [tenant.name, gettext("weight {0}").format(tenant.weight), tenant.cohort or gettext("no cohort")]
    return {"conflict": events.first(), "said": ", ".join(now)}
