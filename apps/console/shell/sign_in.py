"""Sign-in: Django's own view with a limit of attempts, and single sign-on beside it."""

import logging
import secrets
from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core import signing
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from apps.quotas.authentication import source_of
from apps.quotas.models import User
from apps.quotas.services import accounts, attempts, mail, people
from apps.quotas.services.attempts import TooManyAttempts
from apps.quotas.services.people import SignOnRefused

logger = logging.getLogger(__name__)

# Marks a browser that signed in before, for a quarter of a year, renewed each time.
KNOWN_COOKIE = "known_browser"
KNOWN_SECONDS = 90 * 86400
NEXT = "sign_on_next"
BACKEND = "django.contrib.auth.backends.ModelBackend"


class SignInForm(AuthenticationForm):
    """The sign-in form, with one message for every wrong pair, so that a guesser learns nothing."""

    error_messages = {
        "invalid_login": _("That name and password do not match. Passwords are case-sensitive."),
        "inactive": _("This account is switched off: ask an operator."),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget.attrs["class"] = "form-control"
        self.fields["username"].label = _("Name")
        self.fields["password"].label = _("Password")


class SignIn(LoginView):
    """The sign-in page. An attempt is taken before the password check, and given back if it was right."""

    template_name = "sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Sign in, show the error, or answer 429 with the time of the next attempt."""
        if not settings.LOCAL_ACCOUNTS:
            page = self.render_to_response(self.get_context_data(form=SignInForm(request)))
            page.status_code = 403
            return page
        try:
            attempts.take_sign_in(**_attempt_key(request))
        except TooManyAttempts as refused:
            logger.warning("sign-in: too many attempts from %s", source_of(request))
            # An unbound form: a bound one would check the password.
            page = self.render_to_response(self.get_context_data(form=SignInForm(request), refused=_message(refused)))
            page.status_code = 429
            page.headers["Retry-After"] = str(refused.retry_after_seconds)
            return page
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Rotate the session, mark the browser, record the sign-in."""
        user = form.get_user()
        assert isinstance(user, User)
        try:
            begin_session(self.request, user)
        except accounts.Inactive:
            form.add_error(None, SignInForm.error_messages["inactive"])
            return self.form_invalid(form)
        attempts.give_back(**_attempt_key(self.request))
        return _record_sign_in(self.request, user, "password", HttpResponseRedirect(self.get_success_url()))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add whether single sign-on is available, and whether a session has ended."""
        return super().get_context_data(**_ways_in(), ended="ended" in self.request.GET, **kwargs)


@transaction.atomic
def begin_session(request: HttpRequest, user: User) -> None:
    """Sign the user in, with a stored session. Raises Inactive.

    Deactivation locks the user, too: it comes before, and refuses the sign-in, or after, and ends this session. A
    session that is stored later would work again after the next activation.
    """
    if not User.objects.select_for_update().get(pk=user.pk).is_active:
        raise accounts.Inactive("This account is switched off: ask an operator.")
    login(request, user, backend=BACKEND)
    request.session.save()


@never_cache
@require_safe
def single_sign_on(request: HttpRequest) -> HttpResponse:
    """Redirect to the identity provider. A link, not a form: our policy (form-action) would stop a form."""
    _require_single_sign_on()
    try:
        attempts.count_sign_on(address=source_of(request))
        from apps.quotas import openid  # noqa: PLC0415 - its libraries load with the first who signs in this way

        answer = openid.begin(request, return_to=_address(request))
    except TooManyAttempts as refused:
        return _refuse(request, refused, status=429)
    except SignOnRefused as refused:
        return _refuse(request, refused, status=503)
    request.session[NEXT] = request.GET.get("next", "")
    return answer


@never_cache
@require_safe
def single_sign_on_return(request: HttpRequest) -> HttpResponse:
    """Return from the provider: with a new session, or with the reason why not."""
    _require_single_sign_on()
    try:
        attempts.count_sign_on(address=source_of(request))
        from apps.quotas import openid  # noqa: PLC0415 - as above

        claims = openid.claims_of(request)
        user = people.admit(issuer=settings.OIDC_ISSUER, claims=claims)
        wanted = request.session.pop(NEXT, "")
        logout(request)  # also for the same person: a new session, with its full lifetime
        begin_session(request, user)
    except accounts.Inactive as refused:
        return _refuse(request, SignOnRefused(refused.detail), status=403)
    except TooManyAttempts as refused:
        return _refuse(request, refused, status=429)
    except SignOnRefused as refused:
        return _refuse(request, refused, status=403)
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    answer = HttpResponseRedirect(wanted if safe else resolve_url(settings.LOGIN_REDIRECT_URL))
    return _record_sign_in(request, user, "oidc", answer)


def _ways_in() -> dict[str, bool]:
    return {
        "single_sign_on": bool(settings.OIDC_ISSUER),
        "local_accounts": settings.LOCAL_ACCOUNTS,
        "mails": mail.is_configured(),
    }


def _require_single_sign_on() -> None:
    if not settings.OIDC_ISSUER:
        raise Http404("There is no single sign-on here.")


def _address(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("single-sign-on-return"))


def _refuse(request: HttpRequest, refused: SignOnRefused | TooManyAttempts, *, status: int) -> HttpResponse:
    logger.warning("single sign-on: %s (%s: %s)", refused.detail, type(refused.__cause__).__name__, refused.__cause__)
    facts = {"form": SignInForm(request), "refused": _message(refused), **_ways_in(), "next": ""}
    answer = render(request, "sign_in.html", facts, status=status)
    if isinstance(refused, TooManyAttempts):
        answer.headers["Retry-After"] = str(refused.retry_after_seconds)
    return answer


def _message(refused: SignOnRefused | TooManyAttempts) -> str:
    """Return the refusal in the reader's language; the log has it in English."""
    if isinstance(refused, TooManyAttempts):
        minutes = -(-refused.retry_after_seconds // 60)
        said = ngettext(
            "Too many attempts: try again in one minute.", "Too many attempts: try again in {0} minutes.", minutes
        )
        return said.format(minutes)
    return gettext(refused.detail)


def _record_sign_in(request: HttpRequest, user: User, method: str, answer: HttpResponse) -> HttpResponse:
    people.record_sign_in(user=user, method=method, source_ip=source_of(request))
    answer.set_cookie(
        KNOWN_COOKIE,
        signing.dumps([user.get_username(), secrets.token_hex(8)], salt=KNOWN_COOKIE),
        max_age=KNOWN_SECONDS,
        path=reverse("sign-in"),
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return answer


def _attempt_key(request: HttpRequest) -> dict[str, Any]:
    """Return the account, address and browser of an attempt; the browser only if it signed in as this name before."""
    name = request.POST.get("username", "")
    try:
        known = signing.loads(request.COOKIES.get(KNOWN_COOKIE, ""), salt=KNOWN_COOKIE, max_age=KNOWN_SECONDS)
    except signing.BadSignature:
        known = ["", ""]
    browser = known[1] if attempts.spelling(known[0]) == attempts.spelling(name) else None
    return {"account": name, "address": source_of(request), "browser": browser}
