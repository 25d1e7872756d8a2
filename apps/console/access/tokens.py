"""API tokens of programs: create one, whose text is shown once, rotate one, revoke one."""

from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.shell.fields import boxes, choice, one_of
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.forms import ServiceForm, describe_error, flatten, name_field, posted_versions
from apps.console.shell.owner_filter import administered_tenants
from apps.console.shell.page_access import page
from apps.console.shell.shown_once import redirect_to_secret, take_secret
from apps.quotas.api.serializers import TokenSerializer
from apps.quotas.models import Role, Tenant, Token, User
from apps.quotas.principals import SCOPES, Principal
from apps.quotas.services import tokens
from apps.quotas.services.tokens import TokenEnded
from gpucloud.errors import PreconditionFailed

COLUMNS = [
    "key", "name", "owner", "personal", "tenant", "role", "scopes", "cidrs", "created_at", "expires_at", "last_used_at",
    "revoked_at",
]  # fmt: skip
DAYS: Final = [
    ("7", _("in a week")),
    ("30", _("in 30 days")),
    ("90", _("in 90 days")),
    ("365", _("in a year")),
    ("", _("never")),
]
READS: Final = tuple(scope for scope in SCOPES if scope.endswith(":read"))
MAY: Final = [("all", _("Read and change")), ("read", _("Read only")), ("choose", _("Selected permissions"))]
# The subject of a scope, by the first word of its name.
AREAS: Final = {
    "tenants": _("Tenants and members"),
    "quotas": _("Quotas, requests, budgets, prices"),
    "nodes": _("Nodes, GPUs, pools, clusters"),
    "claims": _("Claims, queue, reservations, proposals"),
    "utilization": _("Measurements"),
    "tokens": _("Tokens"),
    "audit": _("Audit log"),
    "webhooks": _("Webhooks"),
    "users": _("Users, invitations, own account"),
}
RIGHTS: Final = [
    (title, [(scope, AREAS[scope.partition(":")[0]]) for scope in SCOPES if scope.endswith(end)])
    for title, end in ((_("Read"), ":read"), (_("Change"), ":write"))
]
# Initial values of a new token by preset; the reader may change them.
PRESETS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "ci": (
        _("CI pipeline"),
        {"name": "ci", "may": "choose", "days": "90", "scopes": [one for one in SCOPES if one.startswith("claims:")]},
    ),
    "dashboard": (_("Read-only dashboard"), {"name": "dashboard", "role": Role.VIEWER, "may": "read", "days": "365"}),
}
# Seconds, as the API takes them.
OVERLAPS: Final = [
    ("86400", _("for a day")),
    ("3600", _("for an hour")),
    ("604800", _("for a week")),
    ("0", _("no longer")),
]


class RightsForm(ServiceForm):
    """Name, rights, end and networks of a new token."""

    name = name_field("ci", _("Program that uses the token."))
    may = choice(_("Permissions"), MAY)
    days = choice(_("Expires"), DAYS, required=False)
    cidrs = forms.CharField(
        label=_("Allowed networks"),
        required=False,
        max_length=1000,
        help_text=_("Networks, with spaces between: 10.0.0.0/8. Empty: from everywhere."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"}),
    )
    scopes = boxes(_("Selected permissions"), RIGHTS, required=False)

    def clean(self) -> dict[str, Any]:
        """Require a scope if the reader chooses scopes."""
        values = super().clean() or {}
        if values.get("may") == "choose" and not values.get("scopes") and "scopes" not in self.errors:
            self.add_error("scopes", _("Choose at least one."))
        return values

    def clean_cidrs(self) -> list[str]:
        """Validate the networks with the API's own rule."""
        said = TokenSerializer(data={"name": "any", "cidrs": self.cleaned_data["cidrs"].split()})
        if not said.is_valid():
            raise forms.ValidationError(" ".join(flatten(said.errors)))
        networks: list[str] = said.validated_data["cidrs"]
        return networks

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        values = self.cleaned_data
        end = timezone.now() + timedelta(days=int(values["days"])) if values["days"] else None
        scopes = {"all": SCOPES, "read": READS, "choose": values["scopes"]}[values["may"]]
        return {"name": values["name"], "cidrs": values["cidrs"], "scopes": scopes, "expires_at": end}


class TokenForm(RightsForm):
    """A new token of a tenant, or of the whole platform."""

    tenant = one_of(_("Tenant"), Tenant.objects.none(), "slug", required=False)
    role = choice(
        _("Role"),
        Role.choices,
        _("In the tenant; a token of the whole platform is an operator’s."),
        initial=Role.MEMBER,
    )
    field_order = ["name", "tenant", "role", "may", "days", "cidrs", "scopes"]

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = administered_tenants(principal)
        field.required = not principal.is_operator
        field.empty_label = gettext("The whole platform") if principal.is_operator else None

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        return super().service_arguments | {name: self.cleaned_data[name] for name in ("tenant", "role")}


class RotationForm(forms.Form):
    """The overlap of an old token and its successor."""

    overlap = choice(_("The old token works"), OVERLAPS)


class TokenPage(FormPage):
    """A new token, with presets; the next page alone shows its text."""

    template_name, title, submit = "access/new_token.html", _("New token"), _("Create token")

    @property
    def initial(self) -> dict[str, Any]:
        """The values of the chosen preset."""
        preset = PRESETS.get(self.request.GET.get("preset", ""))
        return dict(preset[1]) if preset else {}

    def more_context(self) -> dict[str, Any]:
        """Return the presets, and the rest of the URL that their links keep."""
        rest = self.request.GET.copy()
        rest.pop("preset", None)
        return {"presets": [(key, title) for key, (title, _values) in PRESETS.items()], "rest": rest.urlencode()}

    def finish(self, form: RightsForm, done: tuple[Token, str]) -> HttpResponse:
        """Lead to the page that shows the text once."""
        return redirect_to_secret(self.request, done[1], "token-secret", done[0].key)


class NewToken(TokenPage):
    """A new token of a tenant, or of the whole platform."""

    subtitle = _("For a program; it can do no more than you, and ends when you lose your role")

    def authorize(self) -> None:
        """Refuse readers who administer no tenant."""
        if not self.principal.may_administer:
            raise Http404("Tokens are made by a tenant's admins.")

    @property
    def crumbs(self) -> list[Link]:
        """The list of tokens."""
        return [(reverse("tokens"), gettext("Tokens"))]

    def form(self, data: Any = None) -> TokenForm:
        """Return the form with the tenant of the URL."""
        return TokenForm(
            data, principal=self.principal, initial=self.initial | {"tenant": self.request.GET.get("tenant")}
        )

    def act(self, form: TokenForm) -> tuple[Token, str]:
        """Create the token."""
        return tokens.create(principal=self.principal, user=_maker(self.principal), **form.service_arguments)


@require_GET
@page
def show_secret(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    """Show the text of a new token, once."""
    token = find(principal, key)
    if (shown := take_secret(request)) is None:
        return redirect("token", key=key)
    old = find(principal, shown["old"]) if "old" in shown else None
    return render(request, "access/token.html", {"token": token, "text": shown["text"], "old": old})


def _maker(principal: Principal) -> User | None:
    return User.objects.filter(pk=principal.user_id or 0).first()


@require_POST
@page
def rotate(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    """Replace a token by a new one, which the next page alone shows; the old one ends after the overlap."""
    old, form = find(principal, key), RotationForm(request.POST)
    # Only a request written by hand has another value.
    seconds = int(form.cleaned_data["overlap"]) if form.is_valid() else int(OVERLAPS[0][0])
    try:
        token, text = tokens.rotate(
            principal=principal,
            token=old,
            overlap_seconds=seconds,
            user=_maker(principal),
            versions=posted_versions(request),
        )
    except PreconditionFailed:
        messages.error(request, gettext("Somebody changed it while you had this page open; this is how it is now."))
        return redirect("token", key=key)
    except TokenEnded as error:
        messages.error(request, describe_error(error))
        return redirect("token", key=key)
    return redirect_to_secret(request, text, "token-secret", token.key, old=old.key)


@require_POST
@page
def revoke(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    """End a token at once."""
    token = find(principal, key)
    tokens.revoke(principal=principal, token=token)
    said = gettext("Token {0} is revoked: what still uses it is refused from now on.")
    messages.success(request, said.format(token.name))
    if token.personal and token.user_id == principal.user_id:
        return redirect("account")
    return redirect("tenant", slug=token.tenant.slug) if token.tenant else redirect("tokens")


def find(principal: Principal, key: str) -> Any:
    """Return the token, annotated with its maker. Raises Http404 if it is missing or not visible."""
    token = Token.objects.visible_to(principal).with_makers().filter(key=key).first()
    if token is None:
        raise Http404("There is no such token that you may see.")
    return token


def facts(token: Token) -> dict[str, Any]:
    """Return the token's row for a file, without its secret's digest."""
    others = {
        "tenant": token.tenant and token.tenant.slug,
        "owner": token.user and token.user.get_username(),
        "role": None if token.personal else token.role,
    }
    return {name: others[name] if name in others else getattr(token, name) for name in COLUMNS}
