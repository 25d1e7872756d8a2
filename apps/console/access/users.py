"""One user, changes by an operator, and invitations."""

from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.access.user_list import roles_of
from apps.console.shell.fields import choice, one_of
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import ServiceForm, describe_error
from apps.console.shell.owner_filter import administered_tenants
from apps.console.shell.page_access import page
from apps.console.shell.shown_once import redirect_to_secret, take_secret
from apps.quotas.models import Invitation, Role, Tenant, User
from apps.quotas.principals import Principal
from apps.quotas.services import accounts, invitations, mail, resets
from gpucloud.errors import GpucloudError

OPERATOR = "operator"
# Tokens of a user on their page.
MOST_TOKENS = 50


class InvitationForm(ServiceForm):
    """A person to invite, and their first role."""

    username = forms.CharField(
        label=_("Name"),
        required=False,
        max_length=150,
        validators=[UnicodeUsernameValidator()],
        help_text=_("A suggestion; the person may choose another name."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": "anna"}),
    )
    email = forms.EmailField(
        label=_("Mail address"),
        required=False,
        max_length=254,
        help_text=_("Receives the link if a mail server is configured."),
        widget=forms.EmailInput(attrs={"class": "form-control", "autocomplete": "off"}),
    )
    tenant = one_of(_("Tenant"), Tenant.objects.none(), "slug", required=False)
    role = choice(_("Role"), Role.choices, initial=Role.MEMBER)

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field, role = self.fields["tenant"], self.fields["role"]
        assert isinstance(field, forms.ModelChoiceField)
        assert isinstance(role, forms.ChoiceField)
        field.queryset = administered_tenants(principal)
        field.required = not principal.is_operator
        field.empty_label = gettext("None at first") if principal.is_operator else None
        if principal.is_operator:
            role.choices = [*Role.choices, (OPERATOR, gettext("Operator of the platform"))]

    def refuse(self, error: GpucloudError) -> None:
        """Show a taken name beside its field."""
        self.add_error("username" if error.code == "name-taken" else None, describe_error(error))

    def clean(self) -> dict[str, Any]:
        """Refuse a tenant beside the operator's role."""
        values = super().clean() or {}
        if values.get("role") == OPERATOR and values.get("tenant"):
            self.add_error("tenant", _("An operator needs no tenant: leave one of them out."))
        return values

    @property
    def service_arguments(self) -> dict[str, Any]:
        """The arguments for the service."""
        values = dict(self.cleaned_data)
        operator = values["role"] == OPERATOR
        return values | {"operator": operator, "role": Role.MEMBER if operator else values["role"]}


@require_GET
@page
def user_detail(request: HttpRequest, principal: Principal, username: str) -> HttpResponse:
    """Show one user; with what an operator may change."""
    user = _find(principal, username)
    shown = {
        "person": user,
        "memberships": roles_of(user, principal),
        "tokens": user.tokens.visible_to(principal).with_makers().order_by("-pk")[:MOST_TOKENS],
        "sessions": accounts.sessions_of(user) if principal.is_operator else [],
        "has_identity": bool(user.identities.all()),
        "local_accounts": settings.LOCAL_ACCOUNTS,
    }
    return render(request, "users/user.html", shown)


@require_POST
@page
def set_active(request: HttpRequest, principal: Principal, username: str, active: bool) -> HttpResponse:
    """Deactivate or activate a user."""
    user = _find(principal, username)
    principal.require_operator()
    done = gettext("{0} is active.") if active else gettext("{0} is deactivated: sessions and tokens have ended.")
    try:
        accounts.set_active(principal=principal, user=user, active=active)
        messages.success(request, done.format(username))
    except accounts.LastOperator as error:
        messages.error(request, describe_error(error))
    return redirect("user", username=username)


@require_POST
@page
def set_operator(request: HttpRequest, principal: Principal, username: str, operator: bool) -> HttpResponse:
    """Make a user an operator, or take that role from them."""
    user = _find(principal, username)
    principal.require_operator()
    done = gettext("{0} is an operator.") if operator else gettext("{0} is no operator any more.")
    try:
        accounts.set_operator(principal=principal, user=user, operator=operator)
        messages.success(request, done.format(username))
    except accounts.LastOperator as error:
        messages.error(request, describe_error(error))
    return redirect("user", username=username)


@require_POST
@page
def reset_password(request: HttpRequest, principal: Principal, username: str) -> HttpResponse:
    """Show a link with which the user sets a new password, once."""
    user = _find(principal, username)
    principal.require_operator()
    try:
        path, end = resets.make_link(principal=principal, user=user)
    except GpucloudError as error:
        messages.error(request, describe_error(error))
        return redirect("user", username=username)
    facts = {"until": end.isoformat(), "person": username}
    return redirect_to_secret(request, request.build_absolute_uri(path), "new-link", **facts)


class NewInvitation(FormPage):
    """A new invitation; the next page shows its link, once."""

    template_name, form_class = "users/new_invitation.html", InvitationForm
    title, submit = _("Invite user"), _("Create invitation")
    subtitle = _("You get a link that works once; the person chooses a name and a password")
    admins_only = _("A tenant’s admin invites its members.")
    parent = ("users", _("Users"))

    def form(self, data: Any = None) -> InvitationForm | None:
        """Return the form with the values of the URL."""
        initial = {name: self.request.GET.get(name) for name in ("tenant", "username")}
        return InvitationForm(data, principal=self.principal, initial=initial)

    def act(self, form: InvitationForm) -> tuple[Invitation, str]:
        """Create the invitation."""
        return invitations.invite(principal=self.principal, **form.service_arguments)

    def finish(self, form: InvitationForm, done: tuple[Invitation, str]) -> HttpResponse:
        """Mail the link, and lead to the page that shows it once."""
        invitation, secret = done
        link, mailed = self.request.build_absolute_uri(invitations.path_of(secret)), None
        if invitation.email and mail.is_configured():
            inviter = invitation.created_by.removeprefix("user:")
            mailed = mail.send_invitation(address=invitation.email, link=link, inviter=inviter)
        facts = {"until": invitation.expires_at.isoformat(), "email": invitation.email, "mailed": mailed}
        return redirect_to_secret(self.request, link, "new-link", **facts)

    def more_context(self) -> dict[str, Any]:
        """Return whether there are local accounts."""
        return {"local_accounts": settings.LOCAL_ACCOUNTS}

    @property
    def has_form(self) -> bool:
        """False without local accounts: the identity provider invites. A refusal of a post is shown."""
        return settings.LOCAL_ACCOUNTS or self.request.method == "POST"


@require_GET
@page
def show_link(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the link of an invitation or of a new password, once."""
    if (shown := take_secret(request)) is None:
        return redirect("users")
    return render(request, "users/link.html", shown | {"until": datetime.fromisoformat(shown["until"])})


@require_POST
@page
def revoke_invitation(request: HttpRequest, principal: Principal, uid: Any) -> HttpResponse:
    """Revoke an invitation."""
    invitation = Invitation.objects.visible_to(principal).filter(uid=uid).first()
    if invitation is None:
        raise Http404("There is no such invitation that you may see.")
    try:
        invitations.revoke(principal=principal, invitation=invitation)
        messages.success(request, gettext("The invitation is revoked: its link does not work any more."))
    except invitations.InvitationUsed as error:
        messages.error(request, describe_error(error))
    return redirect("users")


def _find(principal: Principal, username: str) -> User:
    rows = User.visible_to(principal).prefetch_related("memberships__tenant", "identities")
    user = rows.filter(username=username.replace("\0", "")).first()
    if user is None:
        raise Http404("There is no such user that you may see.")
    return user
