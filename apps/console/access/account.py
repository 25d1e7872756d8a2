"""My account: password, sessions, personal tokens, time zone."""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from apps.console.access.tokens import RightsForm, TokenPage
from apps.console.shell.fields import choice
from apps.console.shell.page_access import page
from apps.quotas.models import Token, User
from apps.quotas.principals import Principal
from apps.quotas.services import accounts, attempts, tokens
from gpucloud.errors import GpucloudError
from gpucloud.schedules import time_zones


def password_field(label: Any, *, new: bool) -> forms.CharField:
    """Return a field for a password, which keeps its spaces."""
    kind = "new-password" if new else "current-password"
    return forms.CharField(
        label=label,
        strip=False,
        max_length=1000,
        widget=forms.PasswordInput(attrs={"class": "form-control", "autocomplete": kind}),
    )


class PasswordForm(forms.Form):
    """The present password, and a new one twice."""

    current = password_field(_("Current password"), new=False)
    password = password_field(_("New password"), new=True)
    again = password_field(_("New password again"), new=True)

    def clean(self) -> dict[str, Any]:
        """Require the same new password twice."""
        values = super().clean() or {}
        if "password" in values and "again" in values and values["password"] != values["again"]:
            self.add_error("again", _("The two passwords differ."))
        return values


class ZoneForm(forms.Form):
    """The time zone of the times on the reader's pages."""

    time_zone = choice(_("Time zone"), [], _("Times on pages are shown and read in this zone."), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["time_zone"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "UTC"), *((name, name) for name in sorted(time_zones()))]


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _show(request: HttpRequest, *, status: int = 200, **given: forms.Form) -> HttpResponse:
    user = _user(request)
    shown = {
        "person": user,
        "memberships": user.memberships.select_related("tenant").order_by("tenant__slug"),
        "sessions": accounts.sessions_of(user, current=request.session.session_key),
        "tokens": Token.objects.filter(user=user, personal=True).alive().order_by("-pk"),
        "zone_form": ZoneForm(initial={"time_zone": user.time_zone}),
        "password_form": PasswordForm() if user.has_usable_password() else None,
        "has_identity": user.identities.exists(),
    }
    return render(request, "account/account.html", shown | given, status=status)


@require_GET
@page
def account(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the reader's account."""
    return _show(request)


@sensitive_post_parameters()
@require_POST
@page
def change_password(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Change the reader's password; other sessions end."""
    user, form = _user(request), PasswordForm(request.POST)
    if form.is_valid() and not _wrong_password(request, user, form):
        try:
            keep = request.session.session_key
            changed = accounts.set_password(
                principal=principal, user=user, password=form.cleaned_data["password"], keep=keep
            )
            # The session's key changes with the password: its data stay.
            update_session_auth_hash(request, changed)
            messages.success(request, gettext("Your password is changed. Your other sessions have ended."))
            return redirect("account")
        except ValidationError as error:
            form.add_error("password", error.messages)
        except GpucloudError as error:
            form.add_error(None, gettext(error.detail))
    return _show(request, password_form=form, status=422)


def _wrong_password(request: HttpRequest, user: User, form: PasswordForm) -> bool:
    """Check the present password, with the sign-in's limit of attempts; add the error to the form."""
    key: dict[str, Any] = {"account": user.get_username(), "address": None, "browser": f"session:{user.pk}"}
    try:
        attempts.take_sign_in(**key)
    except attempts.TooManyAttempts as refused:
        form.add_error("current", refused.detail)
        return True
    if not user.check_password(form.cleaned_data["current"]):
        form.add_error("current", _("This is not your current password."))
        return True
    attempts.give_back(**key)
    return False


@require_POST
@page
def change_zone(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Set the reader's time zone."""
    form = ZoneForm(request.POST)
    if not form.is_valid():
        return _show(request, zone_form=form, status=422)
    accounts.set_time_zone(principal=principal, user=_user(request), name=form.cleaned_data["time_zone"])
    messages.success(request, gettext("Your time zone is set."))
    return redirect("account")


@require_POST
@page
def end_session(request: HttpRequest, principal: Principal) -> HttpResponse:
    """End one of the reader's sessions, or all others."""
    only = request.POST.get("session") or None
    keep = request.session.session_key
    accounts.end_sessions(principal=principal, user=_user(request), only=only, keep=keep)
    messages.success(request, gettext("The session has ended.") if only else gettext("All other sessions have ended."))
    return redirect("account")


class NewPersonalToken(TokenPage):
    """A new personal token."""

    title, form_class = _("New personal token"), RightsForm
    subtitle = _("It acts with your own roles at each request, within the rights chosen here")
    parent = ("account", _("My account"))

    def form(self, data: Any = None) -> RightsForm:
        """Return the form with the values of a preset."""
        return RightsForm(data, initial=self.initial)

    def act(self, form: RightsForm) -> tuple[Token, str]:
        """Create the token."""
        return tokens.create_personal(principal=self.principal, **form.service_arguments)
