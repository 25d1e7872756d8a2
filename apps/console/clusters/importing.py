"""The import of a cluster that other software shared: a dry run first, then the import."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from apps.clusters.importing.taking_over import take_over
from apps.console.clusters.cluster_forms import ImportForm
from apps.console.clusters.clusters import find
from apps.console.shell.page_access import page
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError


@require_http_methods(["GET", "POST"])
@page
def import_page(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show the objects to import as a table; `act=take` imports them. No pod is restarted either way."""
    principal.require_operator()
    cluster, form = find(name), ImportForm(request.POST or None)
    shown: dict[str, Any] = {"cluster": cluster, "form": form}
    if request.method == "POST" and form.is_valid():
        rehearsal = request.POST.get("act") != "take"
        try:
            report = take_over(principal=principal, cluster=cluster, rehearsal=rehearsal, **form.cleaned_data)
        except GpucloudError as error:
            form.refuse(error)
        else:
            shown |= {"report": report, "rehearsal": rehearsal}
            if not rehearsal:
                messages.success(request, _("{0} is imported, as the table shows.").format(cluster))
    refused = form.is_bound and not form.is_valid()
    return render(request, "clusters/import.html", shown, status=422 if refused else 200)
