"""The page of one quota: its values, the preview of a change, and its ledger."""

from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.accounting.services.quota_changes import preview
from apps.console.shell.amounts import AmountField
from apps.console.shell.export import as_file, file_format
from apps.console.shell.fields import choice, one_of
from apps.console.shell.form_page import FormPage, Link, OperatorFormPage
from apps.console.shell.forms import VersionedForm
from apps.console.tenants.tenants import find as find_tenant
from apps.nodes.models import Gpu
from apps.quotas.models import LedgerEntry, Pool, Resource, ResourceQuota, Role, Tenant
from apps.quotas.models.resource import AMOUNT_HELP, IN_MIB, MIG, profile_of
from apps.quotas.principals import Principal
from apps.quotas.services import quotas
from apps.scheduling.models import Claim
from gpucloud.web.keyset import keyset_page
from gpucloud.web.tags import amount as format_amount

# More steps than a chart has pixels show nothing more.
MOST_CHANGES = 1000
LEDGER = ["at", "kind", "amount", "used", "hard", "claim_uid", "actor"]
RESOURCES: Final = [
    (Resource.CORE_PERCENT.value, _("Core, percent")),
    (Resource.MEMORY_MIB.value, _("Memory, GiB")),
    (Resource.VGPUS.value, _("vGPUs")),
    (Resource.GPUS.value, _("Whole GPUs")),
    (Resource.HOST_MEMORY_MIB.value, _("Host memory of suspended claims, GiB")),
]
# Inside a sentence; `tenants/_resource.html` has the same names.
WORDS: Final = {
    "core_percent": _("core"),
    "memory_mib": _("memory"),
    "vgpus": _("vGPUs"),
    "gpus": _("whole GPUs"),
    "host_memory_mib": _("host memory"),
    "gpu_hours": _("GPU-hours"),
}
RESOURCES_SAID: Final = _(
    "Core: 100 percent are one GPU’s compute. Memory: GiB, unless it has a unit. vGPUs: pieces of GPUs."
)


UNLIMITED: Final = _("Unlimited")


def resource_words(resource: str) -> str:
    """Return the resource's name inside a sentence."""
    if (profile := profile_of(resource)) is not None:
        return gettext("MIG instances %(profile)s") % {"profile": profile}
    return str(WORDS[resource])


def read_as(form: forms.Form, resource: str) -> None:
    """Read the form's amounts as amounts of this resource."""
    for field in form.fields.values():
        if isinstance(field, AmountField):
            field.of(resource)


class QuotaForm(VersionedForm):
    """The numbers that an operator sets."""

    hard = AmountField(label=_("Quota"), help_text=AMOUNT_HELP["hard"], unlimited=UNLIMITED)
    borrowing_limit = AmountField(
        label=_("May borrow"), help_text=AMOUNT_HELP["borrowing_limit"], unlimited=_("All that is lent")
    )
    lending_limit = AmountField(label=_("Lends"), help_text=AMOUNT_HELP["lending_limit"], unlimited=_("All of it"))

    @property
    def numbers(self) -> dict[str, int | None]:
        """The arguments for the service."""
        return {name: self.cleaned_data[name] for name in quotas.SETTABLE}


def profile_choices() -> list[tuple[str, str]]:
    """Return the MIG profiles of all GPUs, as resources."""
    facts = Gpu.objects.filter(mig__isnull=False).values_list("mig__profiles", flat=True)
    names = {(one["memory_mib"], one["name"]) for profiles in facts for one in profiles}
    return [(f"{MIG}{name}", gettext("MIG instances {0}").format(name)) for _, name in sorted(names)]


class NewQuotaForm(QuotaForm):
    """A new quota."""

    resource = choice(_("Resource"), RESOURCES, RESOURCES_SAID)
    pool = one_of(
        _("Pool"), Pool.objects.order_by("name"), "name", _("Where both are set, a claim is charged to both."),
        required=False, empty_label=_("All pools together"),
    )  # fmt: skip
    field_order = ("resource", "pool")

    def __init__(self, data: Any = None) -> None:
        super().__init__(data, initial={"hard": ""})
        field = self.fields["resource"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [*RESOURCES, *profile_choices()]
        read_as(self, (data or {}).get("resource", ""))


class QuotaPage(OperatorFormPage):
    """A quota: its values, its form for operators, and its ledger."""

    template_name, preview_template, form_class = "tenants/quota.html", "tenants/_preview.html", QuotaForm
    object_type = "quota"

    def find(self) -> ResourceQuota:
        """Return the quota."""
        return find(self.principal, self.kwargs["pk"])

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the quota, or its ledger as a file."""
        if file := file_format(request):
            return as_file(file, f"ledger-{self.row.pk}", LEDGER, self._entries.values(*LEDGER).iterator())
        return super().get(request, *args, **kwargs)

    def form(self, data: Any = None) -> QuotaForm:
        """Return the form with the quota's values."""
        form = QuotaForm(data, initial={name: getattr(self.row, name) for name in (*quotas.SETTABLE, "version")})
        read_as(form, self.row.resource)
        return form

    def act(self, form: QuotaForm) -> ResourceQuota:
        """Change the quota."""
        return quotas.change_quota(principal=self.principal, quota=self.row, versions=form.versions, **form.numbers)

    def preview(self, form: QuotaForm) -> dict[str, Any]:
        """Return the effect of the change."""
        return preview_change(lambda: self.act(form), self.row.tenant)

    def finish(self, form: QuotaForm, done: Any) -> HttpResponse:
        """Return to the quota."""
        self.say(gettext("The quota of {0} is changed.").format(self.row.tenant))
        return redirect("quota", pk=self.row.pk)

    def describe(self) -> str:
        """Return the three numbers in words."""
        shown = [format_amount(getattr(self.row, name), self.row.resource) for name in quotas.SETTABLE]
        return gettext("quota {0}, may borrow {1}, lends {2}").format(*shown)

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Quota of {0}").format(self.row.tenant)

    @property
    def crumbs(self) -> list[Link]:
        """The tenant."""
        return [(reverse("tenant", args=[self.row.tenant.slug]), self.row.tenant.slug)]

    @property
    def _entries(self) -> QuerySet[LedgerEntry]:
        row = self.row
        return LedgerEntry.objects.filter(tenant=row.tenant, pool=row.pool, resource=row.resource).order_by("-pk")

    def more_context(self) -> dict[str, Any]:
        """Return the quota as it is now, its ledger and its chart."""
        quota = find(self.principal, self.row.pk)
        part = keyset_page(self._entries, self.request.GET)
        uids = {entry.claim_uid for entry in part.rows if entry.claim_uid}
        names = dict(Claim.objects.filter(uid__in=uids).values_list("uid", "name"))
        return {
            "quota": quota,
            # An unlimited quota cannot be raised.
            "may_ask": quota.hard is not None and quota.tenant_id in self.principal.with_role(Role.MEMBER),
            "entries": [(entry, entry.claim_uid and names.get(entry.claim_uid)) for entry in part.rows],
            "part": part,
            "chart": history(quota, self._entries),
        }


class NewQuota(FormPage):
    """A new quota of a tenant."""

    preview_template, form_class, operators_only = "tenants/_preview.html", NewQuotaForm, True
    subtitle, submit = _("Present allocations count towards it; running claims stay"), _("Create quota")

    def find(self) -> Tenant:
        """Return the tenant."""
        return find_tenant(self.principal, self.kwargs["slug"])

    def act(self, form: NewQuotaForm) -> ResourceQuota:
        """Create the quota."""
        values = form.numbers | {name: form.cleaned_data[name] for name in ("resource", "pool")}
        return quotas.create_quota(principal=self.principal, tenant=self.row, **values)

    def preview(self, form: NewQuotaForm) -> dict[str, Any]:
        """Return the effect of the quota."""
        return preview_change(lambda: self.act(form), self.row)

    def finish(self, form: NewQuotaForm, done: ResourceQuota) -> HttpResponse:
        """Lead to the quota."""
        return redirect("quota", pk=done.pk)

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("New quota of {0}").format(self.row.name)

    @property
    def crumbs(self) -> list[Link]:
        """The tenant."""
        return [(reverse("tenant", args=[self.row.slug]), self.row.slug)]


def history(quota: ResourceQuota, entries: QuerySet[LedgerEntry]) -> dict[str, Any] | None:
    """Return the data of the quota's chart: `used` and `hard` after each of the last changes. None without any."""
    rows = list(entries.values_list("at", "used", "hard")[:MOST_CHANGES])[::-1]
    if not rows:
        return None
    # Memory is shown in GiB.
    size = 1024 if quota.resource in IN_MIB else 1
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


def preview_change(act: Callable[[], ResourceQuota | None], tenant: Tenant) -> dict[str, Any]:
    """Return the effect of the change, and whether it changes the start of any waiting claim."""
    effect = preview(act, tenant=tenant, show=lambda row: {"quota": row})
    claims = [*effect["runnable"], *effect["pending"]]
    return {"preview": effect, "changes_queue": any(claim["changed"] for claim in claims)}


def find(principal: Principal, pk: int) -> ResourceQuota:
    """Return the quota with its tenant, pool and share. Raises Http404 if it is missing or not the caller's."""
    rows = ResourceQuota.objects.visible_to(principal).select_related("tenant", "pool", "share")
    quota = rows.filter(pk=pk).first()
    if quota is None:
        raise Http404("There is no such quota that you may see.")
    return quota
