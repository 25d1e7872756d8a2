"""The list of all tokens that a reader may change, ended ones included, and the page of one token."""

from typing import Any, Final

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.access import tokens
from apps.console.shell.export import Row, as_file, file_format
from apps.console.shell.owner_filter import OwnerFilterForm
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import Role, Token
from apps.quotas.principals import Principal
from gpucloud.web.keyset import keyset_page

COLUMNS = [*tokens.COLUMNS, "standing"]
STATES: Final = [("", _("All")), ("alive", _("Active")), ("ended", _("Ended"))]


class FilterForm(OwnerFilterForm):
    """The filter of the token list, in the URL."""

    state = forms.ChoiceField(
        label=_("State"), choices=STATES, required=False, widget=forms.Select(attrs={"class": "form-select"})
    )


@require_GET
@page
def token_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List tokens, newest first, by owner and state."""
    if not principal.may_administer:
        raise PermissionDenied(gettext("A tenant’s admin sees its tokens."))
    form = FilterForm(request.GET, principal=principal)
    form.is_valid()
    seen = Token.objects.visible_to(principal)
    rows = form.filter_rows(seen).with_makers().order_by("-pk")
    alive = seen.alive().values("pk")
    state = form.cleaned_data.get("state")
    rows = {"alive": rows.filter(pk__in=alive), "ended": rows.exclude(pk__in=alive)}.get(state or "", rows)
    if file := file_format(request):
        return as_file(file, "tokens", COLUMNS, map(_facts, rows.iterator()))
    shown = {
        "form": form,
        "part": keyset_page(rows, request.GET),
        "wanted": form.wanted,
        "filtered": form.has_changed(),
    }
    return render(request, "tokens/_rows.html" if wants_fragment(request) else "tokens/list.html", shown)


def _facts(token: Any) -> Row:
    return tokens.facts(token) | {"standing": token.standing}


@require_GET
@page
def token_detail(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    """Show one token; with expiry and successor to those who administer it."""
    token = tokens.find(principal, key)
    mine = token.personal and token.user_id == principal.user_id
    may = principal.is_operator or mine or token.tenant_id in principal.with_role(Role.ADMIN)
    groups = [
        (title, [(scope, word) for scope, word in rights if scope in token.scopes]) for title, rights in tokens.RIGHTS
    ]
    shown = {
        "token": token,
        "groups": groups,
        "may_administer": may,
        "may_rotate": mine or not token.personal,
        "asks": tokens.RotationForm(),
    }
    return render(request, "tokens/token.html", shown)
