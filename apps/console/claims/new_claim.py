"""The page of a new claim, with a live estimate beside its fields."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.claims.claim_forms import ClaimForm
from apps.console.claims.estimates import Estimate
from apps.console.shell.form_page import FormPage
from apps.quotas.models import Role
from apps.scheduling.models import Claim
from apps.scheduling.models.choices import OverQuota
from apps.scheduling.services.claims.lifecycle import create_claim
from apps.scheduling.services.claims.spec import ClaimSpec


class NewClaim(FormPage):
    """A new claim for shares of GPUs."""

    template_name, title, submit, form_class = "claims/new.html", _("New claim"), _("Create claim"), ClaimForm
    subtitle = _("Charged to quota on submit, then scheduled")
    parent = ("claims", _("Claims"))

    def form(self, data: Any = None, initial: dict[str, Any] | None = None) -> ClaimForm:
        """Return the form with the values of the URL, or with others."""
        of_url = {name: self.request.GET.get(name) for name in ("tenant", "pool") if name in self.request.GET}
        return ClaimForm(data, principal=self.principal, initial=initial or of_url)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Create the claim, fill in a preset, or answer with the estimate for the present values."""
        if preset := request.POST.get("preset"):
            values = Estimate(self.principal, self.form(request.POST)).preset_values(preset)
            return self.show(self.form(initial=request.POST.dict() | values))
        if request.POST.get("act") == "estimate":
            return render(request, "claims/_estimate.html", self.estimate(self.form(request.POST)))
        return super().post(request, *args, **kwargs)

    def act(self, form: ClaimForm) -> Claim:
        """Create the claim; over quota it waits if the reader chose so."""
        over = OverQuota.WAIT if self.request.POST.get("act") == "wait" else OverQuota.REFUSE
        return create_claim(principal=self.principal, spec=ClaimSpec(**form.service_arguments, when_over_quota=over))

    def finish(self, form: ClaimForm, done: Claim) -> HttpResponse:
        """Lead to the claim."""
        if done.when_over_quota == OverQuota.WAIT and done.reasons:
            self.say(gettext("{0} waits in the queue until there is quota for it.").format(done))
        return redirect("claim", uid=done.uid)

    def show(self, form: ClaimForm, /, **more: Any) -> HttpResponse:
        """Render the page with the estimate."""
        return super().show(form, **self.estimate(form), **more)

    def estimate(self, form: ClaimForm) -> dict[str, Any]:
        """Return the context of the estimate."""
        found = Estimate(self.principal, form)
        tenant = found.tenant
        may_ask = tenant is not None and tenant.pk in self.principal.with_role(Role.MEMBER)
        return {"estimate": found, "may_ask": may_ask}
