"""Search: the page, and the palette that opens over every page.

One rule for all kinds: each word must be a part of a row's text, which begins with its kind, so that `gpu 3 node1` and
`quota acme core` find their rows. Only rows that the reader's pages would show are found.
"""

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_GET

from apps.console.shell.page_access import page, wants_fragment
from apps.console.shell.search_results import Group, Hit, claims, fleet, quotas, reservations, tenants
from apps.quotas.models import Role
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from gpucloud.web.navigation import sections

# More than six words do not narrow the results further.
MOST_WORDS = 6


class WordsForm(forms.Form):
    """The search words, in the URL."""

    q = forms.CharField(
        label=gettext_lazy("Find"),
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"class": "form-control", "type": "search", "autofocus": True}),
    )


@require_GET
@page
def search(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the results by kind; without words the pages and actions."""
    form = WordsForm(request.GET)
    words = form.cleaned_data["q"] if form.is_valid() else ""
    groups = find(principal, words.split()[:MOST_WORDS]) if form.is_valid() else []
    shown = {
        "form": form,
        "words": words,
        "groups": groups,
        "count": sum(len(group.hits) for group in groups),
        "wrong": " ".join(str(error) for error in form.errors.get("q", [])),
    }
    return render(request, "search/_found.html" if wants_fragment(request) else "search/search.html", shown)


def find(principal: Principal, words: list[str]) -> list[Group]:
    """Return the groups with hits, the likeliest first: pages whose title begins with the words, then rows."""
    pages = Group("pages", _("Pages"), _match(words, _places(principal)))
    if not words:
        return [group for group in (pages, Group("actions", _("Actions"), _actions(principal))) if group.hits]
    rows, own = claims(principal, words)
    teams = tenants(principal, words)
    actions = [*_match(words, _actions(principal)), *_claim_actions(principal, own), *teams.actions]
    found = [Group("claims", _("Claims"), rows), Group("tenants", _("Tenants"), teams.hits)]
    found += [*fleet(principal, words), Group("quotas", _("Quotas"), quotas(principal, words))]
    found += [Group("reservations", _("Reservations"), reservations(principal, words))]
    meant = any(hit.title.lower().startswith(" ".join(words).lower()) for hit in pages.hits)
    groups = [pages, *found] if meant else [*found, pages]
    return [group for group in (*groups, Group("actions", _("Actions"), actions)) if group.hits]


def _match(words: list[str], offered: list[Hit]) -> list[Hit]:
    return [hit for hit in offered if all(word.lower() in f"{hit.title} {hit.words}".lower() for word in words)]


def _places(principal: Principal) -> list[Hit]:
    open_to = sections(operator=principal.is_operator, admin=principal.may_administer)
    return [
        Hit(str(place.title), str(section.title), place.path, place.icon, words=place.words)
        for section in open_to
        for place in section.places
    ]


def _actions(principal: Principal) -> list[Hit]:
    """Return the actions that the reader may take without a row."""
    offered = []
    if principal.is_operator or principal.with_role(Role.MEMBER):
        offered += [
            Hit(
                _("New claim"), _("Request shares of GPUs"), reverse("new-claim"), "plus", words="make create start run"
            ),
            Hit(
                _("New reservation"),
                _("Book for a time"),
                reverse("new-reservation"),
                "calendar",
                words="make create book",
            ),
        ]
    if principal.may_administer:
        offered += [
            Hit(_("New token"), _("For a program"), reverse("new-token"), "lock", words="make create key"),
            Hit(_("New webhook"), _("Receive events"), reverse("new-webhook"), "activity", words="make create"),
        ]
    if principal.is_operator:
        offered.append(
            Hit(_("New tenant"), _("Who is charged"), reverse("new-tenant"), "plus", words="make create team")
        )
    return offered


def _claim_actions(principal: Principal, claim: Claim | None) -> list[Hit]:
    """Return the actions on the claim that was found first."""
    if claim is None or not (principal.is_operator or claim.tenant_id in principal.with_role(Role.MEMBER)):
        return []
    url = reverse("claim", args=[claim.uid])
    return [Hit(_("Resize {0}").format(claim.name), str(claim.tenant), f"{url}#resize", "adjustments-horizontal")]
