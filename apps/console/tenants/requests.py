"""Requests beyond quotas and budgets: members ask, their admins pass it on, operators answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.accounting.api.requests import granting
from apps.console.shell.amounts import AmountField
from apps.console.shell.export import facts_of
from apps.console.shell.fields import choice, one_of
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import ServiceForm, VersionedForm, moment
from apps.console.shell.lists.columns import SavedView, column
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Search, made_by, pools, tenants
from apps.console.shell.lists.views import ListPage
from apps.console.tenants.bound_labels import PERIODS, Effect, hours
from apps.console.tenants.quotas import RESOURCES, RESOURCES_SAID, profile_choices, read_as
from apps.quotas.models import Budget, Pool, QuotaRequest, Role, Tenant
from apps.quotas.models.request import GPU_HOURS, UNANSWERED, UNDECIDED, RequestState
from apps.quotas.models.request import PERIODS as BUDGET_PERIODS
from apps.quotas.models.resource import AMOUNT_HELP
from apps.quotas.principals import Principal
from apps.quotas.services import requests
from gpucloud.errors import GpucloudError
from gpucloud.web.badges import badge

ASKS, ANSWERS = ("forward", "accept", "withdraw"), ("approve", "counter", "deny")


class RequestFilter(ListFilter):
    """The filters of requests."""

    q = Search("tenant__slug", "reason", "created_by", placeholder=_("tenant, reason or person"))
    tenant = tenants()
    pool = pools()
    state = Choice(
        _("State"),
        {one.value: (badge(one).label, Q(state=one)) for one in RequestState} | {"all": (_("All"), Q())},
        empty=_("Awaiting an answer"),
        otherwise=Q(state__in=UNANSWERED),
    )
    mine = Flag(_("Mine"), made_by)


class RequestList(ListPage):
    """The visible requests, newest first; the open ones unless the URL asks for others."""

    model, filters, template_name = QuotaRequest, RequestFilter, "requests/list.html"
    title, subtitle = _("Requests"), _("Tenants’ requests beyond their quotas and budgets, and the answers")
    columns = [
        column(_("Request"), "tenant", F("tenant__natural_name"), "resource", "amount"),
        column(_("State"), "state", "state"),
        column(_("Purpose"), css="wide"),
        column(_("Until"), "until", "until", css="wide"),
        column(_("Requested at"), "created", "pk", css="num"),
    ]
    views = [
        SavedView(_("Awaiting an answer")),
        SavedView(_("Mine"), "state=all&mine=1"),
        SavedView(_("All"), "state=all"),
    ]
    file = ("requests", [
        "uid", "tenant", "resource", "period", "pool", "amount", "until", "reason", "state", "offered_amount",
        "offered_until", "granted_amount", "granted_until", "words", "created_by", "created_at", "answered_by",
        "decided_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add tenant and pool."""
        return rows.select_related("tenant", "pool")

    def facts(self, row: Any) -> Any:
        """Return the request with the names of tenant and pool."""
        return facts_of(row, self.file[1], tenant=row.tenant.slug, pool=row.pool and row.pool.name)


OTHERS: Final = [*RESOURCES, (GPU_HOURS, _("GPU-hours of a budget"))]


class RequestForm(ServiceForm):
    """A request for more of one resource, or for a budget."""

    tenant = one_of(_("Tenant"), Tenant.objects.none(), "slug")
    resource = choice(_("Resource"), OTHERS, RESOURCES_SAID)
    period = choice(
        _("Budget period"),
        [("", "–"), *((value, PERIODS[value]) for value, _label in BUDGET_PERIODS)],
        _("For GPU-hours only. Once a budget is spent, nothing new is granted in its period."),
        required=False,
    )
    pool = one_of(_("Pool"), Pool.objects.order_by("name"), "name", required=False, empty_label=_("All pools together"))
    amount = AmountField(label=_("Additional amount"), least=1, help_text=AMOUNT_HELP["more"])
    until = moment(_("Until"), required=False, help_text=_("Time at which the quota falls back. Empty: permanent."))
    reason = forms.CharField(
        label=_("Purpose"), max_length=2000, widget=forms.Textarea(attrs={"class": "form-control", "rows": 3})
    )

    def __init__(self, data: Any = None, *, principal: Principal, **kwargs: Any) -> None:
        super().__init__(data, **kwargs)
        read_as(self, (self.initial if data is None else data).get("resource") or "")
        resource = self.fields["resource"]
        assert isinstance(resource, forms.ChoiceField)
        resource.choices = [*OTHERS, *profile_choices()]
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        mine = Tenant.objects.order_by("slug")
        field.queryset = mine if principal.is_operator else mine.filter(pk__in=principal.with_role(Role.MEMBER))

    def clean(self) -> dict[str, Any]:
        """Check the fields that belong to a budget."""
        values = super().clean() or self.cleaned_data
        values["period"] = values.get("period") or None
        budget = values.get("resource") == GPU_HOURS
        if budget and values["period"] is None and "period" not in self.errors:
            self.add_error("period", _("Choose the period of the budget."))
        if budget and values.get("pool") is not None:
            self.add_error("pool", _("A budget covers all pools together."))
        if not budget and values["period"] is not None:
            self.add_error("period", _("Only GPU-hours have a period."))
        return values


class DenialForm(VersionedForm):
    """The answer of a tenant's admin, who passes a member's request on or says why not."""

    words = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=2000,
        help_text=_("Shown to the requester. A refusal needs a reason."),
        widget=forms.Textarea(attrs={"class": "form-control", "rows": 2}),
    )
    # The fields that each answer sends.
    sends: ClassVar[Mapping[str, Sequence[str]]] = {"deny": ("words",)}

    def __init__(self, data: Any = None, *, row: QuotaRequest) -> None:
        super().__init__(data, initial={"version": row.version})

    @property
    def verb(self) -> str:
        """The button that was pressed."""
        return str(self.data.get("act", ""))

    @property
    def values(self) -> dict[str, Any]:
        """The arguments for the service."""
        return {name: self.cleaned_data[name] for name in self.sends.get(self.verb, ())}

    def clean_words(self) -> str:
        """Require a reason for a refusal."""
        words: str = self.cleaned_data["words"]
        if self.verb == "deny" and not words:
            raise forms.ValidationError(_("Enter a reason."))
        return words


class AnswerForm(DenialForm):
    """An operator's answer."""

    amount = AmountField(
        label=_("Offer instead"), least=1, required=False, help_text=_("It counts once the tenant accepts.")
    )
    until = moment(_("Offered until"), required=False, help_text=_("Empty: permanent."))
    sends = {"approve": ("words",), "deny": ("words",), "counter": ("words", "amount", "until")}

    def __init__(self, data: Any = None, *, row: QuotaRequest) -> None:
        super().__init__(data, row=row)
        self.fields["words"].label = gettext("Comment")
        read_as(self, row.resource)

    def clean(self) -> dict[str, Any]:
        """Check that an offer has an amount, and that nothing else has one."""
        values = super().clean() or self.cleaned_data
        offered = values.get("amount") or values.get("until")
        if self.verb == "counter" and not values.get("amount") and "amount" not in self.errors:
            self.add_error("amount", _("Enter an amount."))
        if self.verb == "approve" and offered:
            # Enter in these fields presses the form's first button.
            self.add_error("amount", _("Approving grants what was asked for. Offer this instead, or leave both empty."))
        return values


class NewRequest(FormPage):
    """A new request."""

    title, submit, form_class = _("Request more quota"), _("Send request"), RequestForm
    subtitle = _("A member’s request goes to the tenant’s admins first; an operator answers it")
    parent = ("requests", _("Requests"))

    def authorize(self) -> None:
        """Refuse readers who may not ask in any tenant."""
        if not self.principal.may_claim:
            raise PermissionDenied(gettext("A tenant’s members ask for more."))

    def form(self, data: Any = None) -> RequestForm:
        """Return the form with the values of the URL: the page with the link fills them."""
        initial = {name: self.request.GET.get(name) for name in ("tenant", "resource", "period", "pool", "amount")}
        return RequestForm(data, principal=self.principal, initial=initial)

    def act(self, form: RequestForm) -> QuotaRequest:
        """Send the request."""
        return requests.ask(principal=self.principal, **form.cleaned_data)

    def finish(self, form: RequestForm, done: QuotaRequest) -> HttpResponse:
        """Lead to the request."""
        if done.state == RequestState.REQUESTED:
            self.say(gettext("The request is sent to the admins of {0}, who pass it on.").format(done.tenant))
        else:
            self.say(gettext("The request is sent. Operators see it on the page of requests."))
        return redirect("request", uid=done.uid)


class RequestPage(FormPage):
    """One request: to operators with its effect and an answer, to its tenant's admins with theirs."""

    template_name, parent = "requests/request.html", ("requests", _("Requests"))

    def find(self) -> QuotaRequest:
        """Return the request."""
        rows = QuotaRequest.objects.visible_to(self.principal).select_related("tenant", "pool")
        return get_object_or_404(rows, uid=self.kwargs["uid"])

    def form(self, data: Any = None) -> Any:
        """Return the form of those who answer now."""
        kind = DenialForm if self.row.state == RequestState.REQUESTED else AnswerForm
        return kind(data, row=self.row)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, accept or withdraw."""
        if self._verb not in (*ASKS, *ANSWERS):
            return self.get(request, *args, **kwargs)
        return super().post(request, *args, **kwargs)

    @property
    def _verb(self) -> str:
        return self.request.POST.get("act", "")

    def act(self, form: Any) -> QuotaRequest:
        """Give the answer."""
        answer: Callable[..., QuotaRequest] = getattr(requests, self._verb)
        return answer(principal=self.principal, request=self.row, versions=form.versions, **form.values)

    def finish(self, form: Any, done: QuotaRequest) -> HttpResponse:
        """Show the request as it is now."""
        self.say(gettext("The request is {0}.").format(str(badge(done.state).label).lower()))
        return redirect("request", uid=done.uid)

    def resolve_conflict(self, form: Any, error: GpucloudError) -> HttpResponse:
        """Show the other answer: this one no longer applies."""
        said = gettext("Somebody answered it while you had this page open; this is how it is now.")
        messages.error(self.request, said)
        return redirect("request", uid=self.row.uid)

    @property
    def _administers(self) -> bool:
        return self.principal.is_operator or self.row.tenant_id in self.principal.with_role(Role.ADMIN)

    @property
    def has_form(self) -> bool:
        """True for those whose answer the request awaits."""
        asked = self.principal.is_operator if self.row.state in UNDECIDED else self._administers
        return self.row.state in UNANSWERED and asked

    def more_context(self) -> dict[str, Any]:
        """Return whether the reader may withdraw it, and the effect of a grant for operators."""
        row, principal = self.row, self.principal
        own = requests.person_of(row.created_by) == principal.name
        shown = {"row": row, "may_take": row.state in UNANSWERED and (self._administers or own)}
        return shown | (_effect(row, principal) if principal.is_operator else {})

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Request of {0}").format(self.row.tenant)


def _effect(row: QuotaRequest, principal: Principal) -> dict[str, Any]:
    """Return the context of the preview: the effect of granting the request."""
    effect = granting(row, principal)
    claims = [*effect["runnable"], *effect["pending"]] if effect else []
    if effect and effect["budget"]:
        effect["effects"] = _budget_effects(row, effect["budget"])
    return {"preview": effect, "changes_queue": any(claim["changed"] for claim in claims)}


def _budget_effects(row: QuotaRequest, budget: dict[str, Any]) -> list[Effect]:
    """Return the raised budget, and what is spent of it, in words."""
    facts = {"period": PERIODS[budget["period"]], "hours": f"{float(budget['gpu_hours']):,.10g}"}
    words = gettext("{period}: a budget of {hours} GPU-hours; {spent} are spent.")
    effects = [("clock", words.format(spent=hours(budget["current"]["gpu_hours_spent"]), **facts))]
    if not Budget.objects.filter(tenant=row.tenant, period=row.period).exists():
        first = gettext("It is the tenant’s first budget of this period: until now only quotas limit it.")
        effects.append(("alert-triangle", first))
    return effects
