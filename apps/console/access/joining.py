"""Pages of people without a session: accept an invitation, ask for a new password, set one."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.views import INTERNAL_RESET_SESSION_TOKEN, PasswordResetConfirmView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables
from django.views.decorators.http import require_http_methods
from kombu.exceptions import OperationalError

from apps.console.access.account import password_field
from apps.console.shell.sign_in import begin_session
from apps.quotas.authentication import source_of
from apps.quotas.models import User
from apps.quotas.services import accounts, attempts, invitations, mail, people, resets
from apps.quotas.services.attempts import TooManyAttempts
from apps.quotas.services.names import NameTaken
from apps.quotas.tasks import send_reset_link
from gpucloud.errors import GpucloudError


class AccountForm(forms.Form):
    """The name and the password of a new account."""

    username = forms.CharField(
        label=_("Name"),
        max_length=150,
        help_text=_("Letters, digits and @ . + - _ only. You sign in with it."),
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "username", "autocapitalize": "none"}),
    )
    password = password_field(_("Password"), new=True)
    again = password_field(_("Password again"), new=True)

    def clean(self) -> dict[str, Any]:
        """Require the same password twice."""
        values = super().clean() or {}
        if "password" in values and "again" in values and values["password"] != values["again"]:
            self.add_error("again", _("The two passwords differ."))
        return values


class AddressForm(forms.Form):
    """The mail address of an account."""

    email = forms.EmailField(
        label=_("Mail address"),
        max_length=254,
        widget=forms.EmailInput(attrs={"class": "form-control", "autocomplete": "email"}),
    )


def message_page(request: HttpRequest, title: str, text: str, *, status: int, seconds: int = 0) -> HttpResponse:
    """Return a page that says one thing and leads to the sign-in."""
    answer = render(request, "joining/message.html", {"title": title, "text": text}, status=status)
    if seconds:
        answer.headers["Retry-After"] = str(seconds)
    return answer


def too_many(request: HttpRequest, refused: TooManyAttempts) -> HttpResponse:
    """Return the page for somebody who must wait."""
    seconds = refused.retry_after_seconds
    text = gettext("Try again in a few minutes.")
    return message_page(request, gettext("Too many attempts"), text, status=429, seconds=seconds)


def ended(request: HttpRequest) -> HttpResponse:
    """Count a link that does not work, and say so; never what it was for."""
    try:
        attempts.count_wrong_link(address=source_of(request))
    except TooManyAttempts as refused:
        return too_many(request, refused)
    return message_page(request, gettext("This link does not work"), gettext(invitations.ENDED), status=404)


@sensitive_variables()
@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "POST"])
def accept(request: HttpRequest, secret: str) -> HttpResponse:
    """Create the invited person's account, and sign them in."""
    try:
        invitation = invitations.find(secret)
        accounts.require_local_accounts()
        form = AccountForm(request.POST or None, initial={"username": invitation.username})
        if request.method == "POST" and form.is_valid():
            user = _accept(request, secret, form)
            if user is not None:
                begin_session(request, user)
                people.record_sign_in(user=user, method="invitation", source_ip=source_of(request))
                return redirect("overview")
    except (invitations.InvitationEnded, accounts.Inactive):
        return ended(request)
    except accounts.LocalAccountsOff as error:
        return message_page(request, gettext(error.title), gettext(error.detail), status=409)
    shown = {"form": form, "invitation": invitation}
    return render(request, "joining/accept.html", shown, status=422 if form.is_bound else 200)


def _accept(request: HttpRequest, secret: str, form: AccountForm) -> User | None:
    """Return the new user; None if the form has an error now."""
    values = {name: form.cleaned_data[name] for name in ("username", "password")}
    try:
        return invitations.accept(secret=secret, source_ip=source_of(request), **values)
    except NameTaken as error:
        form.add_error("username", gettext(error.detail))
    except ValidationError as error:
        for field, said in error.message_dict.items():
            form.add_error(field, said)
    return None


@never_cache
@require_http_methods(["GET", "POST"])
def forgot_password(request: HttpRequest) -> HttpResponse:
    """Mail a link to set a new password. The answer is the same for an address without an account."""
    if not (settings.LOCAL_ACCOUNTS and mail.is_configured()):
        text = gettext("Ask an operator for a link to set a new password.")
        return message_page(request, gettext("Forgotten password"), text, status=404)
    form = AddressForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            attempts.count_reset(address=source_of(request))
            send_reset_link.delay(form.cleaned_data["email"], request.build_absolute_uri("/"))
        except TooManyAttempts as refused:
            return too_many(request, refused)
        except OperationalError:
            text = gettext("No mail can be sent at present. Try again in a minute.")
            return message_page(request, gettext("Forgotten password"), text, status=503, seconds=60)
        text = gettext("If there is an account with this address, a link to set a new password is on its way to it.")
        return message_page(request, gettext("Look into your mailbox"), text, status=200)
    return render(request, "joining/forgot.html", {"form": form}, status=422 if form.is_bound else 200)


class NewPasswordForm(SetPasswordForm):  # type: ignore[type-arg]
    """A new password twice, checked by Django's form; the service stores it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields["new_password1"].label = _("New password")
        self.fields["new_password1"].help_text = _("12 characters or more.")
        self.fields["new_password2"].label = _("New password again")

    def save(self, commit: bool = True) -> Any:
        """Store the password, end all sessions, and record it."""
        facts = {"token": self.token, "source_ip": self.source_ip}  # type: ignore[attr-defined]
        user: Any = self.user
        return resets.use_link(user=user, password=self.cleaned_data["new_password1"], **facts)


class SetPassword(PasswordResetConfirmView):
    """Django's page for a reset link: it takes the token out of the address before it shows the form."""

    template_name = "joining/set_password.html"
    form_class = NewPasswordForm
    success_url = reverse_lazy("sign-in")

    def get_user(self, uidb64: str) -> Any:
        """Return the link's user, who must be active."""
        user: Any = super().get_user(uidb64)
        return user if user is not None and user.is_active and settings.LOCAL_ACCOUNTS else None

    def get_form(self, form_class: Any = None) -> Any:
        """Return the form, with the link's token, and the visitor's address for the audit log."""
        form = super().get_form(form_class)
        form.token = self.request.session.get(INTERNAL_RESET_SESSION_TOKEN, "")  # type: ignore[attr-defined]
        form.source_ip = source_of(self.request)  # type: ignore[attr-defined]
        return form

    def form_valid(self, form: Any) -> HttpResponse:
        """Set the password."""
        try:
            answer = super().form_valid(form)
        except resets.LinkEnded:
            return ended(self.request)
        except GpucloudError as error:
            return message_page(self.request, gettext(error.title), gettext(error.detail), status=409)
        messages.success(self.request, gettext("Your password is set. Sign in with it."))
        return answer

    def render_to_response(self, context: dict[str, Any], **kwargs: Any) -> HttpResponse:
        """Count links that do not work, and say so."""
        if not context.get("validlink"):
            return ended(self.request)
        form = context.get("form")
        return super().render_to_response(context, status=422 if form is not None and form.is_bound else 200)
