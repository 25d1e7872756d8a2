"""Webhooks: who is told of what, one of them with what became of each message, making and changing one."""

import json
import uuid
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_GET, require_http_methods

from apps.console.shell.export import Row, as_file, asked_as_file, facts_of
from apps.console.shell.owner_filter import WhoseForm
from apps.console.shell.page_access import page, wants_fragment
from apps.console.webhooks.webhook_forms import STATES, ChangeForm, DeliveryForm, NewWebhookForm
from apps.quotas.models import AuditEvent, Webhook, WebhookDelivery
from apps.quotas.models.webhook import DeliveryState
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import addresses, hooks, signing
from apps.quotas.services.webhooks.sending import DISABLED_AFTER
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.keyset import keyset_page

PER_PAGE = 50
# A file goes from hand to hand, and the path of a URL may be a secret: without it, as in the audit log.
COLUMNS = [
    "uid", "tenant", "to", "description", "events", "standing", "disabled_reason", "pending", "failures",
    "failing_since", "rotated_at", "created_by", "created_at",
]  # fmt: skip
DELIVERIES = [
    "uid", "kind", "state", "attempts", "status_code", "error", "next_attempt_at", "delivered_at", "created_at",
    "payload",
]  # fmt: skip
# What moves the version that a form carries.
CHANGES = ("webhook.change", "webhook.rotate", "webhook.disable")
# Characters of a payload that a page shows; of a larger one the files have all.
MOST_SHOWN = 8_000


@require_GET
@page
def webhook_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """The platform's first, then each tenant's; for who may make one."""
    if not principal.may_administer:
        raise PermissionDenied(gettext("A tenant’s admin sees its webhooks."))
    form = WhoseForm(request.GET, principal=principal)
    rows = form.narrowed(counted(principal)).order_by(F("tenant__slug").asc(nulls_first=True), "pk")
    if file := asked_as_file(request):
        return as_file(file, "webhooks", COLUMNS, map(_facts, rows.iterator()))
    part = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    shown = {"form": form, "part": part, "hooks": list(map(with_origin, part.object_list)), "wanted": form.wanted}
    return render(request, "webhooks/_rows.html" if wants_fragment(request) else "webhooks/list.html", shown)


def counted(principal: Principal) -> QuerySet[Webhook]:
    """Visible webhooks with `pending`: how many messages wait."""
    waiting = WebhookDelivery.objects.filter(webhook=OuterRef("pk"), state=DeliveryState.PENDING).order_by()
    number = waiting.values("webhook").annotate(number=Count("pk")).values("number")
    return (
        Webhook.objects.visible_to(principal).select_related("tenant").annotate(pending=Coalesce(Subquery(number), 0))
    )


def with_origin(hook: Any) -> Any:
    """The webhook, and `to`: where it goes, without the path."""
    hook.to = addresses.origin(hook.url)
    return hook


def _facts(hook: Any) -> Row:
    return facts_of(with_origin(hook), COLUMNS, tenant=hook.tenant and hook.tenant.slug)


def find(principal: Principal, uid: uuid.UUID) -> Any:
    """The webhook as `counted` has it. Raises Http404 where it is not there, or not the caller's."""
    hook = counted(principal).filter(uid=uid).first()
    if hook is None:
        raise Http404("There is no such webhook that you may see.")
    return with_origin(hook)


@require_http_methods(["GET", "POST"])
@page
def new_webhook(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Make a webhook. This answer is the only place where its secret ever is."""
    if not principal.may_administer:
        raise PermissionDenied(gettext("A tenant’s admin makes its webhooks."))
    form = NewWebhookForm(request.POST or None, principal=principal, initial={"tenant": request.GET.get("tenant")})
    if request.method == "POST" and form.is_valid():
        try:
            return shown_once(request, *hooks.create(principal=principal, **form.cleaned_data))
        except GpucloudError as error:
            form.refuse(error)
    return render(request, "webhooks/new.html", {"form": form}, status=422 if form.is_bound else 200)


def shown_once(request: HttpRequest, hook: Webhook, secret: str) -> HttpResponse:
    """The page with a webhook's new secret."""
    shown = {"hook": with_origin(hook), "text": secret, "both_until": _both_until(hook)}
    return render(request, "webhooks/secret.html", shown, status=201)


def _both_until(hook: Webhook) -> Any:
    """When the secret before ceases to sign; None: there is none that does."""
    end = hook.rotated_at and hook.rotated_at + signing.OVERLAP
    return end if end and end > timezone.now() else None


@require_http_methods(["GET", "POST"])
@page
def webhook_detail(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponseBase:
    """One webhook, its living part, its deliveries as a file, or a change of what it is."""
    hook = find(principal, uid)
    wanted = DeliveryForm(request.GET).wanted
    rows = WebhookDelivery.objects.filter(webhook=hook, **wanted).order_by("-pk")
    if file := asked_as_file(request):
        return as_file(file, f"webhook-{hook.uid}-deliveries", DELIVERIES, map(_delivery_facts, rows.iterator()))
    form = ChangeForm(request.POST or None, hook=hook)
    shown: dict[str, Any] = {"hook": hook, "form": form, "both_until": _both_until(hook), "days": DISABLED_AFTER.days}
    if request.method == "POST" and form.is_valid():
        conflict, done = _changed(request, principal, form)
        if done:
            return redirect("webhook", uid=uid)
        shown |= conflict
    part = keyset_page(rows, request.GET)
    shown |= {"part": part, "deliveries": [_told(row, hook) for row in part.rows]}
    shown |= {"wanted": wanted, "states": STATES, "filtered": bool(wanted)}
    template = "_living" if request.method == "GET" and wants_fragment(request) else "webhook"
    return render(request, f"webhooks/{template}.html", shown, status=422 if form.errors else 200)


def _told(row: Any, hook: Webhook) -> Any:
    """The delivery, `payload` as people read it (empty where it is too long for a page), and `next_at`.

    A webhook that failed is left alone as a whole, so a message that is due may have to wait for that.
    """
    large = len(row.body) > MOST_SHOWN
    row.payload = "" if large else json.dumps(json.loads(row.body), indent=2, ensure_ascii=False)
    row.next_at = row.next_attempt_at and max(row.next_attempt_at, hook.not_before or row.next_attempt_at)
    return row


def _delivery_facts(row: WebhookDelivery) -> Row:
    return facts_of(row, DELIVERIES, payload=json.loads(row.body))


def _changed(request: HttpRequest, principal: Principal, form: ChangeForm) -> tuple[dict[str, Any], bool]:
    """What to show beside the form, and whether the change was made."""
    version, changes, hook = form.cleaned_data["version"], form.changes, form.hook
    versions = None if version is None else frozenset({version})
    if not changes:
        messages.success(request, gettext("Nothing was to be changed."))
        return {}, True
    try:
        hooks.change(principal=principal, hook=hook, versions=versions, **changes)
    except PreconditionFailed:
        hook.refresh_from_db()
        with_origin(hook)
        form.typed_over()
        events = AuditEvent.objects.filter(object_type="webhook", object_id=str(hook.uid), action__in=CHANGES)
        return {"conflict": events.order_by("-pk").first()}, False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, gettext("The webhook is changed."))
    return {}, True
