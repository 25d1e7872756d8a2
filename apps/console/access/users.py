"""One user, changes by an operator, and invitations."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.console.access.user_list import roles_of
from apps.console.shell.fields import choice
from apps.console.shell.forms import ServiceForm, describe_error
from apps.console.shell.owner_filter import administered_tenants
from apps.console.shell.page_access import page
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
    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        to_field_name="slug",
        required=False,
        widget=forms.Select(attrs={"class": "form-select"}),
    )
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
    link = request.build_absolute_uri(path)
    return render(request, "users/link.html", {"person": user, "text": link, "until": end}, status=201)


@require_http_methods(["GET", "POST"])
@page
def new_invitation(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Invite a person; the answer shows the link, once."""
    if not principal.may_administer:
        raise PermissionDenied(gettext("A tenant’s admin invites its members."))
    initial = {name: request.GET.get(name) for name in ("tenant", "username")}
    form = InvitationForm(request.POST or None, principal=principal, initial=initial)
    if request.method == "POST" and form.is_valid():
        try:
            invitation, secret = invitations.invite(principal=principal, **form.service_arguments)
        except GpucloudError as error:
            form.add_error("username" if error.code == "name-taken" else None, describe_error(error))
        else:
            return _show_link(request, invitation, secret)
    shown = {"form": form, "local_accounts": settings.LOCAL_ACCOUNTS}
    return render(request, "users/new_invitation.html", shown, status=422 if form.is_bound else 200)


def _show_link(request: HttpRequest, invitation: Invitation, secret: str) -> HttpResponse:
    link = request.build_absolute_uri(invitations.path_of(secret))
    shown: dict[str, Any] = {"invitation": invitation, "text": link, "until": invitation.expires_at}
    if invitation.email and mail.is_configured():
        inviter = invitation.created_by.removeprefix("user:")
        shown["mailed"] = mail.send_invitation(address=invitation.email, link=link, inviter=inviter)
    return render(request, "users/link.html", shown, status=201)


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
