"""The page of a new claim."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _

from apps.console.claims.claim_forms import ClaimForm
from apps.console.shell.form_page import FormPage
from apps.console.tenants.limits import yours
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import create_claim
from apps.scheduling.services.claims.spec import ClaimSpec


class NewClaim(FormPage):
    """A new claim for shares of GPUs."""

    template_name, title, submit, form_class = "claims/new.html", _("New claim"), _("Create claim"), ClaimForm
    subtitle = _("The tenant’s quota bears it at once; a round of the scheduler then finds its GPUs")
    parent = ("claims", _("Claims"))

    def form(self, data: Any = None) -> ClaimForm:
        """Return the form with the tenant of the URL."""
        return ClaimForm(data, principal=self.principal, initial={"tenant": self.request.GET.get("tenant")})

    def act(self, form: ClaimForm) -> Claim:
        """Create the claim."""
        return create_claim(principal=self.principal, spec=ClaimSpec(**form.service_arguments))

    def finish(self, form: ClaimForm, done: Claim) -> HttpResponse:
        """Lead to the claim."""
        return redirect("claim", uid=done.uid)

    def show(self, form: ClaimForm, **more: Any) -> HttpResponse:
        """Render the page with what is left of the reader's limits."""
        tenant = form.chosen_tenant
        return super().show(form, tenant=tenant, yours=tenant and yours(self.principal, tenant), **more)
