"""Pages of webhooks: the list, one webhook with its deliveries, creation and changes."""

import json
import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Case, Count, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.shell.export import Row, as_file, facts_of, file_format
from apps.console.shell.lists.columns import SavedView, column, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Owner, Search, Text, made_by
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page, wants_fragment
from apps.console.webhooks.webhook_forms import STATES, ChangeForm, DeliveryForm, NewWebhookForm
from apps.quotas.models import AuditEvent, Webhook, WebhookDelivery
from apps.quotas.models.webhook import DeliveryState
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import addresses, hooks, signing
from apps.quotas.services.webhooks.sending import DISABLED_AFTER
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key, keyset_page
from gpucloud.web.natural_order import natural_key

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
    mine = Flag(_("Mine"), made_by)


class WebhookList(ListPage):
    """The webhooks of those that the reader administers, those with problems first."""

    model, filters, template_name = Webhook, WebhookFilter, "webhooks/list.html"
    title, subtitle = _("Webhooks"), _("Endpoints that receive events as signed messages")
    admins_only = _("A tenant’s admin sees its webhooks.")
    # The platform's own come before the tenants'.
    first = (WORST, Key(Coalesce(natural_key("tenant__slug"), Value(""))))
    columns = [
        column(_("To")),
        column(_("Of"), "tenant", natural_key("tenant__slug")),
        column(_("State"), "state", WORST),
        column(_("It is told of"), css="wide"),
        number(_("Messages that wait")),
    ]
    views = [SavedView(_("All")), SavedView(_("Stopped"), "state=stopped"), SavedView(_("Mine"), "mine=1")]
    # Files are passed on, and the path of a URL may be a secret: without it, as in the audit log.
    file = ("webhooks", [
        "uid", "tenant", "to", "description", "events", "standing", "disabled_reason", "pending", "failures",
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


@require_http_methods(["GET", "POST"])
@page
def new_webhook(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Create a webhook. This answer is the only place that ever shows its secret."""
    if not principal.may_administer:
        raise PermissionDenied(gettext("A tenant’s admin makes its webhooks."))
    form = NewWebhookForm(request.POST or None, principal=principal, initial={"tenant": request.GET.get("tenant")})
    if request.method == "POST" and form.is_valid():
        try:
            return render_secret(request, *hooks.create(principal=principal, **form.cleaned_data))
        except GpucloudError as error:
            form.refuse(error)
    return render(request, "webhooks/new.html", {"form": form}, status=422 if form.is_bound else 200)


def render_secret(request: HttpRequest, hook: Webhook, secret: str) -> HttpResponse:
    """Render the page with a webhook's new secret."""
    shown = {"hook": with_origin(hook), "text": secret, "both_until": _both_until(hook)}
    return render(request, "webhooks/secret.html", shown, status=201)


def _both_until(hook: Webhook) -> Any:
    """Return when the previous secret ceases to sign; None if there is none."""
    end = hook.rotated_at and hook.rotated_at + signing.OVERLAP
    return end if end and end > timezone.now() else None


@require_http_methods(["GET", "POST"])
@page
def webhook_detail(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponseBase:
    """Show one webhook, its live fragment, or its deliveries as a file; or change it."""
    hook = find(principal, uid)
    wanted = DeliveryForm(request.GET).wanted
    rows = WebhookDelivery.objects.filter(webhook=hook, **wanted).order_by("-pk")
    if file := file_format(request):
        return as_file(file, f"webhook-{hook.uid}-deliveries", DELIVERIES, map(_delivery_facts, rows.iterator()))
    form = ChangeForm(request.POST or None, hook=hook)
    shown: dict[str, Any] = {"hook": hook, "form": form, "both_until": _both_until(hook), "days": DISABLED_AFTER.days}
    if request.method == "POST" and form.is_valid():
        conflict, done = _apply_change(request, principal, form)
        if done:
            return redirect("webhook", uid=uid)
        shown |= conflict
    part = keyset_page(rows, request.GET)
    shown |= {"part": part, "deliveries": [_with_payload(row, hook) for row in part.rows]}
    shown |= {"wanted": wanted, "states": STATES, "filtered": bool(wanted)}
    template = "_living" if request.method == "GET" and wants_fragment(request) else "webhook"
    return render(request, f"webhooks/{template}.html", shown, status=422 if form.errors else 200)


def _with_payload(row: Any, hook: Webhook) -> Any:
    """Return the delivery with `payload` (formatted; empty if it is too long for a page) and `next_at`.

    After a failure the webhook pauses as a whole, so a message that is due may have to wait for that.
    """
    large = len(row.body) > MOST_SHOWN
    row.payload = "" if large else json.dumps(json.loads(row.body), indent=2, ensure_ascii=False)
    row.next_at = row.next_attempt_at and max(row.next_attempt_at, hook.not_before or row.next_attempt_at)
    return row


def _delivery_facts(row: WebhookDelivery) -> Row:
    return facts_of(row, DELIVERIES, payload=json.loads(row.body))


def _apply_change(request: HttpRequest, principal: Principal, form: ChangeForm) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    version, changes, hook = form.cleaned_data["version"], form.changes, form.hook
    versions = None if version is None else frozenset({version})
    if not changes:
        messages.success(request, gettext("Nothing has changed."))
        return {}, True
    try:
        hooks.change(principal=principal, hook=hook, versions=versions, **changes)
    except PreconditionFailed:
        hook.refresh_from_db()
        with_origin(hook)
        form.keep_typed_values()
        events = AuditEvent.objects.filter(object_type="webhook", object_id=str(hook.uid), action__in=CHANGES)
        return {"conflict": events.order_by("-pk").first()}, False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, gettext("The webhook is changed."))
    return {}, True
