"""The list of all tokens that a reader may change, ended ones included, and the page of one token."""

from functools import partial
from typing import Any

from django.db.models import F, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.access import tokens
from apps.console.shell.lists.bulk import Action, NothingToDo
from apps.console.shell.lists.columns import SavedView, column, named, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Owner, Search
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.quotas.models import Role, Token
from apps.quotas.models.token import SOON
from apps.quotas.principals import Principal
from apps.quotas.services.tokens import revoke


def _alive() -> Q:
    return Q(pk__in=Token.objects.alive().values("pk"))


class TokenFilter(ListFilter):
    """The filters of tokens."""

    q = Search("name", "key", placeholder=_("name or key"))
    tenant = Owner()
    state = Choice(
        _("State"),
        {
            "alive": (_("Active"), _alive),
            "ends-soon": (_("Ends soon"), lambda: _alive() & Q(expires_at__lte=timezone.now() + SOON)),
            "ended": (_("Ended"), lambda: ~_alive()),
        },
    )
    mine = Flag(_("Mine"), lambda principal: Q(user=principal.user_id))


class TokenList(ListPage):
    """The tokens that the reader administers, newest first."""

    model, filters, template_name = Token, TokenFilter, "tokens/list.html"
    title, subtitle = _("Tokens"), _("API tokens of programs: active and ended ones")
    admins_only = _("A tenant’s admin sees its tokens.")
    pick_field = "key"
    columns = [
        named(_("Token")),
        column(_("Owner"), "tenant", F("tenant__natural_name")),
        column(_("State")),
        column(_("Role"), "role", "role"),
        number(_("Created"), "created", "pk", css="wide num"),
        number(_("Expires"), "ends", "expires_at", css="wide num"),
        number(_("Last used"), "used", F("last_used_at"), css="wide num"),
    ]
    views = [
        SavedView(_("All")),
        SavedView(_("Active"), "state=alive"),
        SavedView(_("Ends soon"), "state=ends-soon"),
        SavedView(_("Mine"), "mine=1"),
    ]
    file = ("tokens", [*tokens.COLUMNS, "standing"])

    def with_details(self, rows: Any) -> Any:
        """Add tenant and maker."""
        return rows.with_makers()

    def facts(self, row: Any) -> Any:
        """Return the token without its secret's digest."""
        return tokens.facts(row) | {"standing": row.standing}

    def actions(self) -> list[Action]:
        """Return the revocation."""
        return [Action("revoke", _("Revoke"), partial(_revoke, self.principal))]


def _revoke(principal: Principal, token: Token, versions: frozenset[int] | None) -> str:
    if token.has_ended:
        raise NothingToDo(gettext("It has ended already."))
    revoke(principal=principal, token=token, versions=versions)
    return gettext("Requests with it are refused at once. This cannot be undone.")


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
