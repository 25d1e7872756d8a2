"""The page of integrations: the configuration of kube-scheduler and of API servers for this installation."""

from collections.abc import Iterable
from typing import Any

import yaml
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from apps.clusters.models import Cluster
from apps.clusters.services import configurations
from apps.console.clusters.cluster_forms import ConvertForm, SchedulerForm, WebhookForm
from apps.console.shell.page_access import page
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError


@require_http_methods(["GET", "POST"])
@page
def configuration(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show both configurations as files, by the URL; if posted, convert an old one to the other form."""
    principal.require_operator()
    form, hooks = SchedulerForm(request.GET), WebhookForm(request.GET)
    convert = ConvertForm(request.POST or None)
    shown: dict[str, Any] = {"form": form, "hooks": hooks, "convert": convert, "listens": _endpoint()}
    if form.is_valid():
        shown["scheduler"] = _file([configurations.scheduler(principal=principal, **form.service_arguments)])
    if hooks.is_valid():
        shown |= _webhooks(principal, hooks)
    if convert.is_bound and convert.is_valid():
        shown |= _convert(principal, convert)
    refused = not (form.is_valid() and hooks.is_valid()) or (convert.is_bound and not convert.is_valid())
    return render(request, "clusters/integrations.html", shown, status=422 if refused else 200)


def _endpoint() -> dict[str, Any]:
    return {
        "url": configurations.url(),
        "certificate": settings.EXTENDER_CLIENT_CA,
        "networks": ", ".join(map(str, settings.EXTENDER_CIDRS)),
        "path": f"{'/clusters/NAME' if Cluster.objects.exists() else ''}/scheduler",
    }


def _webhooks(principal: Principal, form: WebhookForm) -> dict[str, Any]:
    given = form.cleaned_data
    switches = ("before_1_28", "hide_gpus", "devices")
    arguments = {name: given[name] for name in ("service", *switches)} | {"at": given["webhook_url"]}
    try:
        return {"webhooks": _file(configurations.webhooks(principal=principal, **arguments))}
    except GpucloudError as error:
        # Marks of code mean nothing on a page.
        return {"no_webhooks": error.detail.replace("`", "")}


def _convert(principal: Principal, form: ConvertForm) -> dict[str, Any]:
    try:
        made, left_out = configurations.convert(principal=principal, document=form.cleaned_data["document"])
    except GpucloudError as error:
        form.refuse(error)
        return {}
    return {"converted": _file([made]), "left_out": left_out}


def _file(documents: Iterable[Any]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False)
