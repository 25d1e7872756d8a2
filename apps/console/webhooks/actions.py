"""Actions on a webhook: enable, disable, rotate its secret, test, redeliver, remove."""

import uuid
from collections.abc import Callable
from typing import TypeVar

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.http import require_POST

from apps.console.shell.forms import describe_error, posted_versions
from apps.console.shell.page_access import page
from apps.console.shell.shown_once import redirect_to_secret
from apps.console.webhooks.webhooks import find
from apps.quotas.models import WebhookDelivery
from apps.quotas.principals import Principal
from apps.quotas.services.webhooks import hooks
from gpucloud.errors import Denied, GpucloudError, PreconditionFailed

T = TypeVar("T")


@require_POST
@page
def switch(request: HttpRequest, principal: Principal, uid: uuid.UUID, enabled: bool) -> HttpResponse:
    """Enable the webhook, which sends waiting messages first; or disable it."""
    hook = find(principal, uid)
    done = _attempt(
        request,
        lambda: hooks.change(principal=principal, hook=hook, versions=posted_versions(request), enabled=enabled),
    )
    if done:
        on, off = (
            gettext("The webhook is enabled; pending messages are sent now."),
            gettext("The webhook is disabled and receives no more messages."),
        )
        messages.success(request, on if enabled else off)
    return redirect("webhook", uid=uid)


@require_POST
@page
def rotate(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Replace the secret; the next page alone shows the new one."""
    hook = find(principal, uid)
    made = _attempt(request, lambda: hooks.rotate(principal=principal, hook=hook, versions=posted_versions(request)))
    return redirect_to_secret(request, made[1], "webhook-secret", uid) if made else redirect("webhook", uid=uid)


@require_POST
@page
def test(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Send a test message."""
    hook = find(principal, uid)
    if _attempt(request, lambda: hooks.send_test(principal=principal, hook=hook)):
        messages.success(request, gettext("A test message is being sent. Its result appears below."))
    return redirect("webhook", uid=uid)


@require_POST
@page
def redeliver(request: HttpRequest, principal: Principal, uid: uuid.UUID, delivery: uuid.UUID) -> HttpResponse:
    """Send one message again, and return to the same part of the list."""
    hook = find(principal, uid)
    row = WebhookDelivery.objects.filter(webhook=hook, uid=delivery).first()
    if row is None:
        raise Http404("There is no such delivery that you may see.")
    if _attempt(request, lambda: hooks.redeliver(principal=principal, hook=hook, delivery=row)):
        messages.success(request, gettext("The message is sent again with the same id."))
    query = request.GET.urlencode()
    return redirect(reverse("webhook", args=[uid]) + (f"?{query}" if query else ""))


@require_POST
@page
def remove(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Delete the webhook and its waiting messages."""
    hook = find(principal, uid)

    def act() -> bool:
        hooks.delete(principal=principal, hook=hook, versions=posted_versions(request))
        return True

    if not _attempt(request, act):
        return redirect("webhook", uid=uid)
    messages.success(request, gettext("The webhook to {0} is removed.").format(hook.to))
    return redirect(reverse("webhooks") + (f"?tenant={hook.tenant}" if hook.tenant else ""))


def _attempt(request: HttpRequest, act: Callable[[], T]) -> T | None:
    """Return the service's answer; None if it refused, and then a message gives the reason."""
    try:
        return act()
    except Denied:
        raise
    except PreconditionFailed:
        messages.error(
            request,
            gettext("Somebody changed it while you had this page open; this is how it is now."),
        )
    except GpucloudError as error:
        messages.error(request, describe_error(error))
    return None
