"""Views of /quota-requests/: requests for more quota or a budget, and the answers; operators see what each would do."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.api.budgets import BudgetSerializer
from apps.accounting.api.quotas import PreviewSerializer, quota_document
from apps.accounting.services.quota_changes import preview, preview_of_bounds
from apps.quotas.api.methods import creates, lists, order, shows
from apps.quotas.api.serializers import RESOURCE_HELP, RESOURCE_WRONG, PoolByName, TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Budget, QuotaRequest
from apps.quotas.models.request import GPU_HOURS, PERIODS, REQUESTED, RequestState
from apps.quotas.models.resource import AMOUNT_HELP, MOST_AMOUNT
from apps.quotas.principals import Principal
from apps.quotas.services import requests
from apps.scheduling.api.claims import DRY_RUN, dry_run
from gpucloud.api import etags, shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict, StrictInteger, either
from gpucloud.api.shown import Columns
from gpucloud.errors import GpucloudError


class RequestForMoreSerializer(Strict):
    """A request of a tenant for more of one resource, or for GPU-hours of a budget."""

    uid = shown.uid()
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: the quota over all pools, or a budget.")
    resource = serializers.RegexField(
        REQUESTED,
        help_text=f"{RESOURCE_HELP} `gpu_hours`: a budget, with `period`.",
        error_messages={"invalid": f"{RESOURCE_WRONG[:-1]}, or {GPU_HOURS}."},
    )
    period = serializers.ChoiceField(
        choices=PERIODS, allow_null=True, default=None, help_text="The budget's, with `gpu_hours` only."
    )
    amount = StrictInteger(
        min_value=1,
        max_value=MOST_AMOUNT,
        help_text=f"{AMOUNT_HELP['more']} A tenant without a budget asks for its first one.",
    )
    until = serializers.DateTimeField(
        allow_null=True, default=None, help_text=f"{AMOUNT_HELP['until']} Null: for good."
    )
    reason = serializers.CharField(max_length=2000, help_text="The reason, for the operator.")
    columns_1 = Columns(QuotaRequest, "state offered_amount offered_until")
    words = shown.text("The operator's answer.")
    granted_amount = shown.integer(null=True)
    granted_until = shown.time("The time at which the quota falls back.", null=True)
    columns_2 = Columns(QuotaRequest, "created_by answered_by decided_at version created_at updated_at")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check the fields that belong to a budget."""
        if errors := budget_errors(attrs["resource"], attrs["period"], attrs["pool"]):
            raise serializers.ValidationError({name: [words] for name, words in errors.items()})
        return attrs


def budget_errors(resource: str, period: Any, pool: Any) -> dict[str, str]:
    """Return the errors of these fields together, by field."""
    if resource != GPU_HOURS:
        return {"period": "Only with `gpu_hours`."} if period else {}
    errors = {} if period else {"period": "Give the budget's period."}
    return errors | ({"pool": "A budget covers all pools."} if pool else {})


class RequestPreviewSerializer(PreviewSerializer):
    """The effects of granting a request."""

    budget = BudgetSerializer(read_only=True, allow_null=True, help_text="The budget as it would be; null for a quota.")


class RequestForMoreDetailSerializer(RequestForMoreSerializer):
    """A request, with a preview of approving it for operators."""

    preview = serializers.SerializerMethodField(
        help_text="What approving it (or accepting the offer) would do; null for others than operators, and where that "
        "would be refused."
    )

    @extend_schema_field(RequestPreviewSerializer(allow_null=True))
    def get_preview(self, row: QuotaRequest) -> Any:
        """Return the preview, by the services that would do it, rolled back."""
        principal: Principal = self.context["request"].user
        return granting(row, principal) if principal.is_operator else None


def granting(row: QuotaRequest, principal: Principal) -> dict[str, Any] | None:
    """Return the preview of what would be granted; None if it would be refused."""
    act = {RequestState.OPEN: requests.approve, RequestState.COUNTERED: requests.accept}.get(RequestState(row.state))
    if act is None:
        return None
    try:
        return preview_request(row, lambda: act(principal=principal, request=row))
    except GpucloudError:
        return None


def preview_request(row: QuotaRequest, act: Callable[[], QuotaRequest]) -> dict[str, Any]:
    """Return the effects of an answer. Raises whatever `act` raises."""
    if not row.of_budget:
        return {**preview(act, tenant=row.tenant, show=quota_document), "budget": None}

    def raised() -> Budget:
        act()
        return Budget.objects.select_related("tenant").get(tenant=row.tenant, period=row.period)

    effect = preview_of_bounds(raised, tenant=row.tenant)
    budget = BudgetSerializer(effect.pop("row")).data
    return {"quota": None, "budget": budget, "dry_run": True, "over": [], **effect}


class WordsSerializer(Strict):
    """An optional comment."""

    words = serializers.CharField(max_length=2000, allow_blank=True, default="")


class DenialSerializer(Strict):
    """The reason of a denial."""

    words = serializers.CharField(max_length=2000)


class CounterSerializer(WordsSerializer):
    """A counter-offer."""

    amount = StrictInteger(min_value=1, max_value=MOST_AMOUNT)
    until = serializers.DateTimeField(allow_null=True, default=None, help_text="Null: for good.")


class RequestView(ApiView):
    """The common part of request views."""

    serializer_class: Any = RequestForMoreSerializer
    lookup_key = "uid"
    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = QuotaRequest.objects.select_related("tenant", "pool")

    answer_class, address = RequestForMoreSerializer, "/quota-requests/{row.uid}/"


class RequestList(RequestView, ListMixin):
    """Requests for more quota."""

    filterset_class = filters_of(QuotaRequest, "resource", "period", "state", tenant="tenant__slug", pool="pool__name")
    get = lists("List requests, newest first.")
    post = creates(
        requests.ask,
        "Create a request for more of a resource or a budget; a member's waits for its admins, as `requested`.",
    )


class RequestDetail(RequestView):
    """One request."""

    serializer_class: Any = RequestForMoreDetailSerializer
    get = shows("Show a request; to operators with the preview of approving it.")


APPROVED_OR_PREVIEW = either("RequestForMoreOrPreview", RequestForMoreSerializer, RequestPreviewSerializer)


RequestForward = order(
    RequestView, requests.forward, "request", "Pass a member's request on to the operators (the tenant's admins)."
)


class RequestApprove(RequestView):
    """The approval of a request by an operator."""

    serializer_class: Any = WordsSerializer
    change_parameters = {"POST": frozenset({"dry_run"})}

    @extend_schema(parameters=[DRY_RUN], responses={200: APPROVED_OR_PREVIEW})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Raise the quota or the budget by the requested amount (operators)."""
        row, values, versions = self.find(uid), self.parse_body(request), etags.if_match(request)

        def act() -> QuotaRequest:
            return requests.approve(principal=self.principal, request=row, versions=versions, **values)

        if dry_run(request):
            return Response(preview_request(row, act))
        return self.respond(act())


RequestDeny = order(
    RequestView,
    requests.deny,
    "request",
    "Deny the request, with a reason (operators; the tenant's admins while it is `requested`).",
    body=DenialSerializer,
)
RequestCounter = order(
    RequestView,
    requests.counter,
    "request",
    "Offer another amount or date, which the tenant may accept (operators).",
    body=CounterSerializer,
)


RequestAccept = order(
    RequestView,
    requests.accept,
    "request",
    "Accept the offer that If-Match names: the quota is raised by it (the tenant's admins).",
    tagged=True,
)
RequestWithdraw = order(
    RequestView, requests.withdraw, "request", "Withdraw the request (the tenant's admins, and whoever made it)."
)
