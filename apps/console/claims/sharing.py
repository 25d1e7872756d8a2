"""A claim's part of a shared GPU: its weight, its class, whether rebalancing may change it, and moves take it away."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.claims.claim_forms import memory_limit, remote_choice, schedule_field
from apps.console.claims.claims import BEST_EFFORT, GUARANTEED, find
from apps.console.shell.amounts import MemoryField
from apps.console.shell.fields import api_help, choice, switch
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import VersionedForm, number
from apps.quotas.models.limits import MOST, ClaimField
from apps.scheduling.api.serializers import ResizeSerializer
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import MOST_WEIGHT, PLACED
from apps.scheduling.services.claims.isolation import LIVE_IN_INSTANCE, OWN_PART
from apps.scheduling.services.claims.lent_memory import lends_memory
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.claims.resize import UNCHARGED, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from gpucloud.web.tags import mib, percent

# The fields of a claim that opened no instance.
SHARED = [*(name for name in UNCHARGED if name not in OWN_PART), "memory_limit_mib"]
FIELDS = (*UNCHARGED, "memory_limit_mib")
CLASSES = [(GUARANTEED, _("Guaranteed")), (BEST_EFFORT, _("Best effort"))]


class SharingForm(VersionedForm):
    """The fields of a claim for which nothing is charged, and what it borrows.

    `version` holds these fields as the reader saw them: the claim's own version changes with every step of its life,
    too.
    """

    weight = number(_("Weight"), most=MOST_WEIGHT, help_text=api_help(ResizeSerializer, "weight"))
    best_effort = choice(_("Class"), CLASSES, api_help(ResizeSerializer, "class"))
    rebalance = switch(
        _("May be rebalanced"),
        _("Otherwise rebalancing and the pool’s idle rule only report it, and it gets lent core back at once."),
    )
    movable = switch(
        _("May move to other nodes"), _("Such a move ends its programs; they start again there from what they saved.")
    )
    remote = remote_choice()
    schedule = schedule_field(_("Empty: never."))
    memory_limit_mib = memory_limit()
    own_core = number(_("Own core"), least=0, most=100, help_text=api_help(ResizeSerializer, "own_core"))
    own_memory_mib = MemoryField(
        label=_("Own memory"),
        most=MOST[ClaimField.MEMORY_MIB],
        help_text=_("Memory of the opened instance for this claim’s programs; GiB unless it has a unit."),
    )

    def __init__(self, *args: Any, claim: Claim, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.offered = LIVE_IN_INSTANCE if claim.own_core is not None else SHARED
        if not lends_memory(claim.pool) and claim.memory_limit_mib is None:
            self.offered = [name for name in self.offered if name != "memory_limit_mib"]
        for name in set(FIELDS).difference(self.offered):
            del self.fields[name]

    def clean_best_effort(self) -> bool:
        """Return the class as the claim stores it."""
        return bool(self.cleaned_data["best_effort"] == BEST_EFFORT)

    def clean_remote(self) -> str:
        """Return the choice; without one it stays."""
        return str(self.cleaned_data["remote"] or self.initial["remote"])


class SharingPage(FormPage):
    """The sharing form of a claim."""

    template_name, object_type, actions = "claims/sharing.html", "claim", ("claim.resize",)

    def find(self) -> Claim:
        """Return the claim."""
        return find(self.principal, self.kwargs["uid"])

    def authorize(self) -> None:
        """Refuse readers who may not change it."""
        self.principal.require_role(self.row.tenant, "member")

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the form while the claim can be changed."""
        return self._refuse_ended() or super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Apply the form while the claim can be changed."""
        return self._refuse_ended() or super().post(request, *args, **kwargs)

    def _refuse_ended(self) -> HttpResponse | None:
        if self.row.waiting or self.row.state in (*PLACED, ClaimState.SUSPENDED):
            return None
        messages.info(self.request, gettext("{0} has ended or is ending: it cannot be changed.").format(self.row))
        return redirect("claim", uid=self.row.uid)

    def form(self, data: Any = None) -> SharingForm:
        """Return the form with the claim's values."""
        row = self.row
        kind = BEST_EFFORT if row.best_effort else GUARANTEED
        same = {name: getattr(row, name) for name in FIELDS}
        return SharingForm(data, claim=row, initial={**same, "best_effort": kind, "version": self.version()})

    @transaction.atomic
    def act(self, form: SharingForm) -> list[str]:
        """Change the claim, and return the names of the changed fields."""
        self.row = locked(self.row)
        self.require_version(form)
        changes = form.changes_of(self.row, form.offered)
        resize_claim(principal=self.principal, claim=self.row, changes=ClaimChanges(**changes))
        return list(changes)

    def finish(self, form: SharingForm, done: list[str]) -> HttpResponse:
        """Return to the claim."""
        self.say_changed(form, done)
        return super().finish(form, done)

    def version(self) -> str:
        """Return the values that this form shows, for comparison."""
        return "-".join(str(getattr(self.row, name)) for name in FIELDS)

    def describe(self) -> str:
        """Return the claim's values in words."""
        rebalanced = gettext("may be rebalanced") if self.row.rebalance else gettext("is not rebalanced")
        kind = gettext("Best effort") if self.row.best_effort else gettext("Guaranteed")
        words = [gettext("weight {0}").format(self.row.weight), kind.lower(), rebalanced, self.row.schedule]
        if self.row.memory_limit_mib is not None:
            words.append(gettext("memory limit {0}").format(mib(self.row.memory_limit_mib)))
        if self.row.own_core is not None:
            own = gettext("own part {0}, {1}").format(percent(self.row.own_core), mib(self.row.own_memory_mib))
            words = [words[0], own]
        return ", ".join(filter(None, words))

    def more_context(self) -> dict[str, Any]:
        """Return the claim."""
        return {"claim": self.row}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("How {0} shares").format(self.row)

    @property
    def crumbs(self) -> list[Link]:
        """The claim."""
        return [(reverse("claim", args=[self.row.uid]), str(self.row))]
