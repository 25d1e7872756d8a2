"""Help: the glossary, and the keyboard shortcuts."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.console.shell.page_access import page
from apps.quotas.principals import Principal
from gpucloud.web.glossary import CHAPTERS


@require_GET
@page
def glossary(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the whole glossary."""
    return render(request, "help/help.html", {"chapters": CHAPTERS})
