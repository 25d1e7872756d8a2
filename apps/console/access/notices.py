"""My notices: what a person is told by e-mail; and the link that ends all of it."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_POST

from apps.console.access.joining import message_page
from apps.console.shell.fields import choice, switch
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import Group, VersionedForm, describe_error
from apps.console.shell.page_access import page
from apps.notices import choosing
from apps.notices.models import BudgetPercent, Mail, NoticeKind, NoticeSettings, When
from apps.quotas.principals import Principal
from apps.quotas.services import tokens
from gpucloud import schedules
from gpucloud.errors import GpucloudError, Missing

NAMES = (*NoticeKind.values, "budget_percent", "all_claims", "quiet_hours", "urgent_passes", "digest_hour")

# What most people want to know at once. Nothing is mailed before they save it.
SUGGESTED = dict.fromkeys(
    (NoticeKind.PREEMPTED, NoticeKind.NODE_LOST, NoticeKind.JOB_FAILED, NoticeKind.BUDGET), When.NOW
)


class NoticesForm(VersionedForm):
    """When each kind is mailed, to whom it concerns, and quiet hours."""

    started = choice(NoticeKind.STARTED.label, When.choices)
    preempted = choice(NoticeKind.PREEMPTED.label, When.choices, _("Urgent."))
    idle = choice(NoticeKind.IDLE.label, When.choices)
    node_lost = choice(
        NoticeKind.NODE_LOST.label, When.choices, _("Urgent. Members learn of their claims, operators of each node.")
    )
    job_succeeded = choice(NoticeKind.JOB_SUCCEEDED.label, When.choices)
    job_failed = choice(NoticeKind.JOB_FAILED.label, When.choices)
    job_stopped = choice(
        NoticeKind.JOB_STOPPED.label,
        When.choices,
        _("By a person, by its rule for unused notebooks, or with its claim."),
    )
    budget = choice(NoticeKind.BUDGET.label, When.choices)
    request = choice(NoticeKind.REQUEST.label, When.choices)
    budget_percent = choice(_("Thresholds of budgets"), BudgetPercent.choices)
    all_claims = switch(_("Of others"), _("Also of claims and jobs that other members of my tenants made."))
    quiet_hours = forms.CharField(
        label=_("Quiet hours"),
        required=False,
        max_length=schedules.MOST_LETTERS,
        validators=[schedules.validate],
        help_text=_("What happens meanwhile is mailed when they end, in your time zone if none is named."),
        widget=forms.TextInput(attrs={"class": "form-control", "placeholder": "daily 22:00-07:00"}),
    )
    urgent_passes = switch(_("Urgent notices"), _("Mail urgent notices in quiet hours, too."))
    digest_hour = forms.TypedChoiceField(
        label=_("Daily mail at"),
        coerce=int,
        choices=[(hour, f"{hour:02}:00") for hour in range(24)],
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    groups = (
        Group(_("Kinds of notices"), NoticeKind.values),
        Group(_("Scope"), ["budget_percent", "all_claims"]),
        Group(_("Time"), ["digest_hour", "quiet_hours", "urgent_passes"]),
    )


class NoticesPage(FormPage):
    """The reader's notices."""

    template_name = "account/notices.html"
    title = _("Notices")
    subtitle = _("What you are told by e-mail, about tenants of which you are a member")
    form_class, submit = NoticesForm, _("Save notices")
    parent = ("account", _("My account"))
    object_type, actions = "person", ("notices.change", "notices.unsubscribe")

    def find(self) -> NoticeSettings:
        """Return the reader's choices."""
        return choosing.settings_of(tokens.require_own_rights(self.principal))

    @property
    def audited_key(self) -> str:
        """Key of the reader in the audit log."""
        return str(self.row.user.get_username())

    def form(self, data: Any = None) -> NoticesForm:
        """Return the form with the reader's choices; with suggestions, if they never chose."""
        initial = {name: getattr(self.row, name) for name in (*NAMES, "version")}
        return NoticesForm(data, initial=initial | (SUGGESTED if self.are_suggested else {}))

    @property
    def are_suggested(self) -> bool:
        """True for a person who never chose, and to whom mail can go."""
        return not self.row.pk and not self.refusal

    @property
    def refusal(self) -> str:
        """Reason why no mail can go to the reader; empty if it can."""
        try:
            choosing.require_address(self.row.user)
        except choosing.NoAddress as error:
            return gettext(error.detail)
        return ""

    def act(self, form: NoticesForm) -> NoticeSettings:
        """Store the choices."""
        values = {name: form.cleaned_data[name] for name in NAMES}
        versions = form.versions if self.row.pk else None
        return choosing.choose(principal=self.principal, versions=versions, **values)

    def finish(self, form: NoticesForm, done: NoticeSettings) -> HttpResponse:
        """Stay on the page."""
        self.say(gettext("Your notices are saved."))
        return redirect("notices")

    def more_context(self) -> dict[str, Any]:
        """Return the address and the last mail, or why there can be none."""
        user = self.row.user
        return {
            "address": user.email,
            "refusal": self.refusal,
            "are_suggested": self.are_suggested,
            "last": Mail.objects.filter(user=user).order_by("-pk").first(),
        }


@require_POST
@page
def send_test(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Send the reader a test mail."""
    try:
        choosing.send_test(principal=principal)
        messages.success(request, gettext("A test mail is being sent. Its result appears here in a few seconds."))
    except GpucloudError as error:
        messages.error(request, describe_error(error))
    return redirect("notices")


# A mail program posts here by itself (RFC 8058): it has no session and no token of a form. The link is signed.
@csrf_exempt
@never_cache
@require_http_methods(["GET", "POST"])
def unsubscribe(request: HttpRequest, token: str) -> HttpResponse:
    """Ask whether to end all notices of the link's person, or end them; nobody need sign in."""
    try:
        if request.method != "POST":
            return render(request, "account/unsubscribe.html", {"person": choosing.user_of(token)})
        choosing.unsubscribe(token)
    except Missing as error:
        return message_page(request, gettext(error.title), gettext(error.detail), status=404)
    text = gettext("You are told nothing more by e-mail. Choose again at any time on the page of your account.")
    return message_page(request, gettext("All notices have ended"), text, status=200)
