"""Pages of organisations: the tree with the use at each level, one organisation, and its quotas."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.core.validators import RegexValidator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.accounting.services.quota_changes import preview_of_levels
from apps.console.shell.amounts import AmountField
from apps.console.shell.fields import one_of
from apps.console.shell.form_page import FormPage, Link, OperatorFormPage
from apps.console.shell.forms import ServiceForm, VersionedForm, describe_error, name_field, posted_versions
from apps.console.shell.page_access import page
from apps.console.tenants.quotas import UNLIMITED, NewQuotaForm, read_as
from apps.quotas.models import Organisation, OrganisationQuota, Tenant
from apps.quotas.models.resource import AMOUNT_HELP
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from apps.quotas.services import organisations
from apps.quotas.services.organisation_quotas import tenants_below
from gpucloud.errors import GpucloudError

PREVIEW: Final = "tenants/_preview.html"


def preview_levels(act: Callable[[], Any], organisation: Organisation, *named: Organisation | None) -> dict[str, Any]:
    """Return the context of a preview: the effect of `act` on the organisation, on all above, and on those named."""
    keys = [row.pk for row in (organisation, *named) if row is not None]
    effect = preview_of_levels(act, tenants=tenants_below(organisation), organisations=keys)
    changed = any(claim["changed"] for claim in (*effect["runnable"], *effect["pending"]))
    return {"preview": effect, "changes_queue": changed}


class OrganisationForm(VersionedForm):
    """The changeable fields of an organisation."""

    name = name_field("Physics")
    parent = one_of(
        _("Part of"), Organisation.objects.order_by("slug"), "slug", _("Its tenants count there, too."),
        required=False, empty_label=_("None: it stands at the top"),
    )  # fmt: skip


class NewOrganisationForm(OrganisationForm):
    """A new organisation."""

    slug = forms.CharField(
        label=_("Short name"),
        max_length=63,
        help_text=_("In URLs and commands: a–z, 0–9 and hyphens. It cannot be changed later."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "physics"}),
        validators=[RegexValidator(SLUG)],
    )
    field_order = ("slug",)


class OrganisationQuotaForm(VersionedForm):
    """The limit of what all tenants of an organisation hold together."""

    hard = AmountField(label=_("Quota"), help_text=AMOUNT_HELP["organisation_hard"], unlimited=UNLIMITED)


class NewOrganisationQuotaForm(NewQuotaForm):
    """A new quota of an organisation."""

    borrowing_limit = lending_limit = None  # type: ignore[assignment]


class OrganisationTree(OperatorFormPage):
    """The organisations above the reader's tenants, with quotas and tenants, and the form of a new one."""

    template_name, title = "tenants/organisations.html", _("Organisations")
    subtitle = _("Quotas that several tenants share, level by level")
    form_class, submit, parent = NewOrganisationForm, _("Create organisation"), ("tenants", _("Tenants"))

    def act(self, form: NewOrganisationForm) -> Organisation:
        """Create the organisation."""
        values = {name: form.cleaned_data[name] for name in ("slug", "name", "parent")}
        return organisations.create_organisation(principal=self.principal, **values)

    def finish(self, form: ServiceForm, done: Organisation) -> HttpResponse:
        """Lead to the organisation."""
        return redirect("organisation", slug=done.slug)

    def more_context(self) -> dict[str, Any]:
        """Return the tree in its order, each organisation with its depth, quotas and tenants."""
        rows = Organisation.objects.visible_to(self.principal).prefetch_related("quotas__pool").order_by("slug")
        tenants = defaultdict[int | None, list[Tenant]](list)
        for tenant in Tenant.objects.visible_to(self.principal).exclude(organisation=None).order_by("slug"):
            tenants[tenant.organisation_id].append(tenant)
        children = defaultdict[int | None, list[Organisation]](list)
        for row in rows:
            children[row.parent_id].append(row)

        def walk(parent: int | None, depth: int) -> Iterator[dict[str, Any]]:
            for row in children[parent]:
                yield {
                    "organisation": row,
                    "marks": "— " * depth,
                    "quotas": row.quotas.all(),
                    "tenants": tenants[row.pk],
                }
                yield from walk(row.pk, depth + 1)

        return {"tree": list(walk(None, 0))}


class OrganisationPage(OperatorFormPage):
    """One organisation: its quotas and tenants, and its form for operators."""

    template_name, object_type, preview_template = "tenants/organisation.html", "organisation", PREVIEW

    def find(self) -> Organisation:
        """Return the organisation. Raises Http404."""
        return get_object_or_404(Organisation.objects.visible_to(self.principal), slug=self.kwargs["slug"])

    def form(self, data: Any = None) -> OrganisationForm:
        """Return the form with its values."""
        return OrganisationForm(data, initial={name: getattr(self.row, name) for name in ("name", "parent", "version")})

    def act(self, form: OrganisationForm) -> Organisation:
        """Change the organisation."""
        changes = form.changes_of(self.row, ("name", "parent"))
        return organisations.change_organisation(
            principal=self.principal, organisation=self.row, versions=form.versions, **changes
        )

    def preview(self, form: OrganisationForm) -> dict[str, Any]:
        """Return the effect of a move."""
        return preview_levels(lambda: self.act(form), self.row, form.cleaned_data["parent"])

    def finish(self, form: ServiceForm, done: Organisation) -> HttpResponse:
        """Return to the organisation."""
        self.say(gettext("Organisation {0} is changed.").format(done))
        return redirect("organisation", slug=done.slug)

    def describe(self) -> str:
        """Return its values in words."""
        return ", ".join([self.row.name, gettext("part of {0}").format(self.row.parent or "–")])

    @property
    def audited_key(self) -> str:
        """The slug."""
        return str(self.row.slug)

    @property
    def heading(self) -> str:
        """The title of the page."""
        return str(self.row.name)

    @property
    def crumbs(self) -> Sequence[Link]:
        """The tree."""
        return [(reverse("organisations"), gettext("Organisations"))]

    def more_context(self) -> dict[str, Any]:
        """Return its quotas and its tenants."""
        tenants = Tenant.objects.visible_to(self.principal).filter(organisation=self.row).order_by("slug")
        return {"quotas": self.row.quotas.select_related("pool"), "tenants": tenants}


class _QuotaPage(FormPage):
    """A form of an organisation's quota."""

    operators_only, submit, preview_template = True, _("Apply"), PREVIEW

    def preview(self, form: Any) -> dict[str, Any]:
        """Return the effect of the quota."""
        return preview_levels(lambda: self.act(form), self.organisation)

    @property
    def organisation(self) -> Organisation:
        """The organisation."""
        found: Organisation = self.row if isinstance(self.row, Organisation) else self.row.organisation
        return found

    @property
    def crumbs(self) -> Sequence[Link]:
        """The tree, and the organisation."""
        above = (reverse("organisations"), gettext("Organisations"))
        return [above, (reverse("organisation", args=[self.organisation.slug]), self.organisation.name)]

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Quota of {0}").format(self.organisation.name)


class NewOrganisationQuota(_QuotaPage):
    """A new quota; what the tenants hold already counts."""

    form_class, subtitle = NewOrganisationQuotaForm, _("What its tenants hold already counts")

    def find(self) -> Organisation:
        """Return the organisation. Raises Http404."""
        return get_object_or_404(Organisation, slug=self.kwargs["slug"])

    def act(self, form: NewOrganisationQuotaForm) -> OrganisationQuota:
        """Create the quota."""
        values = {name: form.cleaned_data[name] for name in ("resource", "pool", "hard")}
        return organisations.create_quota(principal=self.principal, organisation=self.row, **values)


class OrganisationQuotaPage(_QuotaPage):
    """The change of a quota."""

    template_name, object_type = "tenants/organisation_quota.html", "organisation-quota"
    subtitle = _("Below the present use nothing is taken away, and nothing new is granted")

    def find(self) -> OrganisationQuota:
        """Return the quota. Raises Http404."""
        rows = OrganisationQuota.objects.select_related("organisation", "pool")
        return get_object_or_404(rows, pk=self.kwargs["pk"])

    def form(self, data: Any = None) -> OrganisationQuotaForm:
        """Return the form with its value."""
        form = OrganisationQuotaForm(data, initial={"hard": self.row.hard, "version": self.row.version})
        read_as(form, self.row.resource)
        return form

    @property
    def rows(self) -> list[OrganisationQuota]:
        """The quota, for the list of its use."""
        return [self.row]

    def act(self, form: OrganisationQuotaForm) -> OrganisationQuota:
        """Change the quota."""
        hard = form.cleaned_data["hard"]
        return organisations.change_quota(principal=self.principal, quota=self.row, versions=form.versions, hard=hard)


@require_POST
@page
def remove(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Remove an empty organisation."""
    principal.require_operator()
    row = get_object_or_404(Organisation, slug=slug)
    try:
        organisations.delete_organisation(principal=principal, organisation=row, versions=posted_versions(request))
    except GpucloudError as error:
        messages.error(request, describe_error(error))
        return redirect("organisation", slug=slug)
    messages.success(request, gettext("Organisation {0} is removed.").format(slug))
    return redirect("organisations")


@require_POST
@page
def remove_quota(request: HttpRequest, principal: Principal, pk: int) -> HttpResponse:
    """Remove a quota: its tenants keep what they hold."""
    principal.require_operator()
    row = get_object_or_404(OrganisationQuota.objects.select_related("organisation"), pk=pk)
    organisations.delete_quota(principal=principal, quota=row)
    messages.success(request, gettext("The quota of {0} is removed.").format(row.organisation))
    return redirect("organisation", slug=row.organisation.slug)
