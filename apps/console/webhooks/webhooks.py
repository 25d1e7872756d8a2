"""Pages of webhooks: the list, one webhook with its deliveries, creation and changes."""

import json
import uuid
from typing import Any

from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.shell.export import Row, as_file, facts_of, file_format
from apps.console.shell.form_page import FormPage
from apps.console.shell.lists.columns import SavedView, column, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Owner, Search, Text, made_by
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page, wants_fragment
from apps.console.shell.shown_once import redirect_to_secret, take_secret
from apps.console.webhooks.webhook_forms import STATES, ChangeForm, DeliveryForm, NewWebhookForm
from apps.quotas.models import Webhook, WebhookDelivery
from apps.quotas.models.webhook import DeliveryState, WebhookFormat
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import addresses, hooks, signing
from apps.quotas.services.webhooks.formats import rendering
from apps.quotas.services.webhooks.sending import DISABLED_AFTER
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key, keyset_page

DELIVERIES = [
    "uid", "kind", "state", "attempts", "status_code", "error", "next_attempt_at", "delivered_at", "created_at",
    "payload",
]  # fmt: skip
# Actions that change the version of the form.
CHANGES = ("webhook.change", "webhook.rotate", "webhook.disable")
# The most characters of a payload that a page shows; the files have larger ones completely.
MOST_SHOWN = 8_000
# The conditions of `Webhook.standing`, the worst first.
STANDINGS = {
    "stopped": Q(enabled=False, disabled_reason__isnull=False),
    "failing": Q(enabled=True, failures__gt=0),
    "off": Q(enabled=False, disabled_reason=None),
    "on": Q(enabled=True, failures=0),
}
WORST = Key(Case(*(When(one, then=Value(at)) for at, one in enumerate(STANDINGS.values())), default=Value(9)))


class WebhookFilter(ListFilter):
    """The filters of webhooks."""

    q = Search("description", "created_by", placeholder=_("description or person"))
    tenant = Owner()
    state = Choice(_("State"), {name: (badge(name).label, condition) for name, condition in STANDINGS.items()})
    event = Text(_("Event"), "events__contains", "claim.idle")
    # Not "format": that chooses the kind of file.
    sent_as = Choice(_("Format"), {one.value: (one.value, Q(format=one)) for one in WebhookFormat})
    mine = Flag(_("Mine"), made_by)


class WebhookList(ListPage):
    """The webhooks of those that the reader administers, those with problems first."""

    model, filters, template_name = Webhook, WebhookFilter, "webhooks/list.html"
    title, subtitle = _("Webhooks"), _("Endpoints that receive events as signed messages")
    admins_only = _("A tenant’s admin sees its webhooks.")
    # The platform's own come before the tenants'.
    first = (WORST, Key(Coalesce(F("tenant__natural_name"), Value(""))))
    columns = [
        column(_("To")),
        column(_("Owner"), "tenant", F("tenant__natural_name")),
        column(_("Format"), "format"),
        column(_("State"), "state", WORST),
        column(_("Events"), css="wide"),
        number(_("Pending deliveries")),
    ]
    views = [SavedView(_("All")), SavedView(_("Stopped"), "state=stopped"), SavedView(_("Mine"), "mine=1")]
    # Files are passed on, and the path of a URL may be a secret: without it, as in the audit log.
    file = ("webhooks", [
        "uid", "tenant", "to", "format", "description", "events", "standing", "disabled_reason", "pending", "failures",
        "failing_since", "rotated_at", "created_by", "created_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add tenant and waiting messages."""
        return with_counts(rows)

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the URLs without their paths."""
        return list(map(with_origin, rows))

    def facts(self, row: Any) -> Row:
        """Return the webhook with its tenant's slug."""
        return facts_of(with_origin(row), self.file[1], tenant=row.tenant and row.tenant.slug)

    def more_context(self) -> dict[str, Any]:
        """Return the chosen owner."""
        return {"wanted": self.request.GET.get("tenant", "")}


def with_counts(rows: QuerySet[Webhook]) -> QuerySet[Webhook]:
    """Return the webhooks with `pending`: the number of waiting messages."""
    waiting = WebhookDelivery.objects.filter(webhook=OuterRef("pk"), state=DeliveryState.PENDING).order_by()
    number = waiting.values("webhook").annotate(number=Count("pk")).values("number")
    return rows.select_related("tenant").annotate(pending=Coalesce(Subquery(number), 0))


def with_origin(hook: Any) -> Any:
    """Return the webhook with `to`: its URL without the path."""
    hook.to = addresses.origin(hook.url)
    return hook


def find(principal: Principal, uid: uuid.UUID) -> Any:
    """Return the webhook as `with_counts` annotates it. Raises Http404 if it is missing or not the caller's."""
    hook = with_counts(Webhook.objects.visible_to(principal)).filter(uid=uid).first()
    if hook is None:
        raise Http404("There is no such webhook that you may see.")
    return with_origin(hook)


class NewWebhook(FormPage):
    """A new webhook; the next page alone shows its secret, if its messages are signed."""

    title = _("New webhook")
    subtitle = _("Each event is a POST to your server, a chat or Alertmanager, in the format that it takes")
    form_class, submit = NewWebhookForm, _("Create webhook")
    admins_only = _("A tenant’s admin makes its webhooks.")
    parent = ("webhooks", _("Webhooks"))

    def form(self, data: Any = None) -> NewWebhookForm:
        """Return the form with the tenant of the URL."""
        return NewWebhookForm(data, principal=self.principal, initial={"tenant": self.request.GET.get("tenant")})

    def act(self, form: NewWebhookForm) -> tuple[Webhook, str | None]:
        """Create the webhook."""
        return hooks.create(principal=self.principal, **form.cleaned_data)

    def finish(self, form: NewWebhookForm, done: tuple[Webhook, str | None]) -> HttpResponse:
        """Lead to the secret, or else to the webhook."""
        if done[1] is None:
            self.say(gettext("The webhook is created. Send a test: the result appears below."))
            return redirect("webhook", uid=done[0].uid)
        return redirect_to_secret(self.request, done[1], "webhook-secret", done[0].uid)


@require_GET
@page
def show_secret(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show a webhook's new secret, once."""
    hook = find(principal, uid)
    if (shown := take_secret(request)) is None:
        return redirect("webhook", uid=uid)
    return render(request, "webhooks/secret.html", {"hook": hook, "both_until": _both_until(hook), **shown})


def _both_until(hook: Webhook) -> Any:
    """Return when the previous secret ceases to sign; None if there is none."""
    end = hook.rotated_at and hook.rotated_at + signing.OVERLAP
    return end if end and end > timezone.now() else None


class WebhookPage(FormPage):
    """A webhook with its deliveries and its form."""

    template_name, object_type, actions = "webhooks/webhook.html", "webhook", CHANGES
    parent = ("webhooks", _("Webhooks"))

    def find(self) -> Any:
        """Return the webhook."""
        return find(self.principal, self.kwargs["uid"])

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the webhook, its live fragment, or its deliveries as a file."""
        if file := file_format(request):
            name = f"webhook-{self.row.uid}-deliveries"
            return as_file(file, name, DELIVERIES, map(_delivery_facts, self._deliveries().iterator()))
        if wants_fragment(request):
            self.template_name = "webhooks/_living.html"
        return super().get(request, *args, **kwargs)

    def _deliveries(self) -> QuerySet[WebhookDelivery]:
        wanted = DeliveryForm(self.request.GET).wanted
        return WebhookDelivery.objects.filter(webhook=self.row, **wanted).order_by("-pk")

    def form(self, data: Any = None) -> ChangeForm:
        """Return the form with the webhook's values."""
        return ChangeForm(data, hook=self.row)

    def act(self, form: ChangeForm) -> bool:
        """Change the webhook; return False if nothing was to be changed."""
        if form.changes:
            hooks.change(principal=self.principal, hook=self.row, versions=form.versions, **form.changes)
        return bool(form.changes)

    def finish(self, form: ChangeForm, done: bool) -> HttpResponse:
        """Return to the webhook."""
        self.say(gettext("The webhook is changed.") if done else gettext("Nothing has changed."))
        return redirect("webhook", uid=self.row.uid)

    def more_context(self) -> dict[str, Any]:
        """Return the webhook, and a page of its deliveries."""
        hook, part = self.row, keyset_page(self._deliveries(), self.request.GET)
        wanted = DeliveryForm(self.request.GET).wanted
        return {
            "hook": with_origin(hook),
            "both_until": _both_until(hook),
            "days": DISABLED_AFTER.days,
            "part": part,
            "deliveries": [_with_payload(row, hook) for row in part.rows],
            "wanted": wanted,
            "states": STATES,
            "filtered": bool(wanted),
        }

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Webhook to {0}").format(self.row.to)


def _with_payload(row: Any, hook: Webhook) -> Any:
    """Return the delivery with `payload` (as its format has it; empty if it is too long for a page) and `next_at`.

    After a failure the webhook pauses as a whole, so a message that is due may have to wait for that.
    """
    large = len(row.body) > MOST_SHOWN
    row.webhook = hook
    row.payload = "" if large else json.dumps(rendering.message(row, timezone.now()), indent=2, ensure_ascii=False)
    row.next_at = row.next_attempt_at and max(row.next_attempt_at, hook.not_before or row.next_attempt_at)
    return row


def _delivery_facts(row: WebhookDelivery) -> Row:
    return facts_of(row, DELIVERIES, payload=json.loads(row.body))
