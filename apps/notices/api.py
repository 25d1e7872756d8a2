"""/me/notices/: what the caller is told by e-mail, and when."""

from typing import Any

from django.core.exceptions import ValidationError as RulesBroken
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.notices import choosing
from apps.notices.models import BudgetPercent, Mail, NoticeKind, NoticeSettings, When
from apps.quotas.api.views import ApiView
from apps.quotas.idempotency import idempotent
from apps.quotas.services import tokens
from gpucloud.api import etags
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns


def _when(kind: NoticeKind) -> Any:
    return serializers.ChoiceField(choices=When.choices, required=False, help_text=f"{kind.label}: when it is mailed.")


class NoticeSettingsSerializer(Strict):
    """A person's choices of notices by e-mail."""

    started = _when(NoticeKind.STARTED)
    preempted = _when(NoticeKind.PREEMPTED)
    idle = _when(NoticeKind.IDLE)
    node_lost = _when(NoticeKind.NODE_LOST)
    job_succeeded = _when(NoticeKind.JOB_SUCCEEDED)
    job_failed = _when(NoticeKind.JOB_FAILED)
    job_stopped = _when(NoticeKind.JOB_STOPPED)
    budget = _when(NoticeKind.BUDGET)
    request = _when(NoticeKind.REQUEST)
    budget_percent = serializers.ChoiceField(
        choices=BudgetPercent.choices, required=False, help_text="Least threshold of a budget that is told."
    )
    all_claims = serializers.BooleanField(
        required=False,
        help_text="True: of all claims and jobs of the person's tenants; false: of those that they made.",
    )
    quiet_hours = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=100,
        help_text='No mail in this window, like "daily 22:00-07:00" or "weekends 00:00-24:00 Europe/Berlin"; without a '
        "time zone, the person's own. Empty: none.",
    )
    urgent_passes = serializers.BooleanField(
        required=False, help_text="True: preemptions and lost nodes are mailed in quiet hours, too."
    )
    digest_hour = StrictInteger(
        min_value=0, max_value=23, required=False, help_text="Hour of the daily mail, in the person's time zone."
    )
    columns = Columns(NoticeSettings, "last_mail_at version")


class NoticeMailSerializer(Strict):
    """A mail of notices."""

    columns = Columns(Mail, "uid state attempts error sent_at created_at")


class MyNotices(ApiView):
    """The caller's choices."""

    serializer_class = NoticeSettingsSerializer
    read_scope, write_scope = "users:read", "users:write"
    filter_backends = []
    pagination_class = None

    def get(self, request: Request) -> Response:
        """Show what the caller is told by e-mail. Needs a person: a session, or a personal token."""
        return self.answer(choosing.settings_of(tokens.require_own_rights(self.principal)))

    def patch(self, request: Request) -> Response:
        """Choose what the caller is told by e-mail, and when."""
        tokens.require_own_rights(self.principal)
        values, versions = self.parse_body(request, partial=True), etags.if_match(request)
        try:
            return self.answer(choosing.choose(principal=self.principal, versions=versions, **values))
        except RulesBroken as error:
            raise ValidationError(error.message_dict) from error


class MyNoticeTest(ApiView):
    """A test mail."""

    serializer_class = NoticeMailSerializer
    write_scope = "users:write"
    filter_backends = []
    pagination_class = None
    tagged = False

    @extend_schema(request=None, responses={201: NoticeMailSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Send the caller a test mail, within seconds."""
        tokens.require_own_rights(self.principal)
        self.without_body(request)
        return Response(self.get_serializer(choosing.send_test(principal=self.principal)).data, status=201)


urlpatterns = [
    path("me/notices/", MyNotices.as_view()),
    path("me/notices/test/", MyNoticeTest.as_view()),
]
