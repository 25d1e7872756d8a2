"""The change of a tenant: its name, weight, cohort and organisation; with a preview of the latter three."""

from typing import Any

from django.db.models import Sum
from django.http import HttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.accounting.services.quota_changes import preview, preview_of_levels
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import VersionedForm
from apps.console.tenants.bound_labels import Effect
from apps.console.tenants.tenants import NewTenantForm
from apps.console.tenants.tenants import find as find_tenant
from apps.quotas.models import Tenant
from apps.quotas.services import tenants
from gpucloud.web.tags import percent

SETTABLE = ("name", "weight", "cohort", "organisation", "remote")
# A sentence names no more of a cohort's tenants than one reads.
MOST_NAMED = 10


class ChangeForm(VersionedForm, NewTenantForm):
    """The changeable fields of a tenant; the short name is in URLs and stays."""

    slug = None  # type: ignore[assignment]

    def changes(self, tenant: Tenant) -> dict[str, Any]:
        """Return the fields that differ from the tenant, for the service."""
        values = {name: self.cleaned_data[name] for name in SETTABLE} | {"cohort": self.cleaned_data["cohort"] or None}
        return {name: value for name, value in values.items() if getattr(tenant, name) != value}


class ChangeTenant(FormPage):
    """The change of a tenant."""

    template_name, preview_template = "tenants/change.html", "tenants/_preview.html"
    subtitle, operators_only, object_type = _("Running claims stay as they are"), True, "tenant"

    def find(self) -> Tenant:
        """Return the tenant."""
        return find_tenant(self.principal, self.kwargs["slug"])

    def form(self, data: Any = None) -> ChangeForm:
        """Return the form with the tenant's values."""
        return ChangeForm(data, initial={name: getattr(self.row, name) for name in (*SETTABLE, "version")})

    def act(self, form: ChangeForm) -> Tenant:
        """Change the tenant."""
        changes = form.changes(self.row)
        return tenants.change_tenant(principal=self.principal, tenant=self.row, versions=form.versions, **changes)

    def preview(self, form: ChangeForm) -> dict[str, Any]:
        """Return the effect of the change."""
        changes, effects = form.changes(self.row), _effects(self.row, form.changes(self.row))
        effect = preview(lambda: self.act(form), tenant=self.row, show=lambda _row: {}, joins=changes.get("cohort"))
        claims = [*effect["runnable"], *effect["pending"]]
        effect["effects"] = effects
        if "organisation" in changes:
            keys = [changes["organisation"].pk] if changes["organisation"] else []
            levels = preview_of_levels(lambda: self.act(form), tenants=[self.row], organisations=keys)
            effect["levels"] = levels["levels"]
        # Another weight changes the order of the queue, whatever starts.
        return {"preview": effect, "changes_queue": "weight" in changes or any(claim["changed"] for claim in claims)}

    def finish(self, form: ChangeForm, done: Tenant) -> HttpResponse:
        """Return to the tenant."""
        self.say(gettext("Tenant {0} is changed.").format(done))
        return super().finish(form, done)

    def describe(self) -> str:
        """Return the tenant's values in words."""
        row = self.row
        return ", ".join([row.name, gettext("weight {0}").format(row.weight), row.cohort or gettext("no cohort")])

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Change {0}").format(self.find().name)

    @property
    def crumbs(self) -> list[Link]:
        """The tenant."""
        return [(reverse("tenant", args=[self.row.slug]), self.row.slug)]

    @property
    def audited_key(self) -> str:
        """The tenant's slug."""
        return str(self.row.slug)


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
