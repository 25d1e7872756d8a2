"""Views of /quotas/, with previews of changes, which need claims."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.services.quota_changes import preview
from apps.quotas.api import quotas as routes
from apps.quotas.api.serializers import QuotaChangeSerializer, QuotaSerializer
from apps.quotas.idempotency import idempotent
from apps.quotas.models import QuotaRequest, ResourceQuota, Tenant
from apps.quotas.services import quotas
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.api.serializers import ReasonSerializer
from gpucloud.api import etags, shown
from gpucloud.api.serializers import Strict, either


class OverSerializer(Strict):
    """A quota of which more would be held than allowed."""

    tenant = shown.text()
    pool = shown.text(null=True)
    resource = shown.text()
    hard = shown.integer(null=True)
    used = shown.integer()
    borrowed = shown.integer()
    excess = shown.integer("The amount held above the limit. Nothing is taken away; it falls as claims end.")


class PreviewedClaimSerializer(Strict):
    """A waiting claim that could start."""

    claim = shown.uid()
    tenant = shown.text()
    name = shown.text()
    changed = shown.flag("Whether the change makes the difference.")


class PendingClaimSerializer(PreviewedClaimSerializer):
    """A waiting claim that would go on waiting."""

    reasons = ReasonSerializer(many=True, read_only=True)


class PreviewSerializer(Strict):
    """The effects of a change of a quota."""

    dry_run = shown.flag()
    quota = QuotaSerializer(read_only=True, allow_null=True, help_text="The quota as it would be; null: removed.")
    over = OverSerializer(many=True, read_only=True)
    runnable = PreviewedClaimSerializer(many=True, read_only=True)
    pending = PendingClaimSerializer(many=True, read_only=True)
    claims_left_out = shown.integer("The number of waiting claims behind the first 200.")


# Both are 200: a change, or a preview of it.
CHANGED_OR_PREVIEW = either("QuotaOrPreview", QuotaChangeSerializer, PreviewSerializer)


def quota_document(row: Any) -> dict[str, Any]:
    """Return the quota that was changed, or that a request is for; null if it is gone."""
    if isinstance(row, QuotaRequest):
        row = ResourceQuota.objects.get(tenant=row.tenant, pool=row.pool, resource=row.resource)
    return {"quota": row and QuotaSerializer(row).data}


def respond_preview(act: Callable[[], Any], tenant: Tenant) -> Response:
    """Return a response with the effects of `act`."""
    return Response(preview(act, tenant=tenant, show=quota_document))


class QuotaList(routes.QuotaList):
    """Quotas: what tenants may hold."""

    change_parameters = {"POST": frozenset({"dry_run"})}

    @extend_schema(parameters=[DRY_RUN], responses={201: QuotaSerializer, 200: PreviewSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a tenant's quota of one resource."""
        values = self.parse_body(request)

        def act() -> Any:
            return quotas.create_quota(principal=self.principal, **values)

        return respond_preview(act, values["tenant"]) if dry_run(request) else self.answer(act(), status=201)


class QuotaDetail(routes.QuotaDetail):
    """One quota."""

    tag_required = frozenset({"PATCH", "DELETE"})
    change_parameters = {"PATCH": frozenset({"dry_run"}), "DELETE": frozenset({"dry_run"})}

    @extend_schema(parameters=[DRY_RUN], responses={200: CHANGED_OR_PREVIEW})
    def patch(self, request: Request, pk: int) -> Response:
        """Set `hard` or a limit; needs If-Match.

        Below the used amount nothing is taken away, and nothing new is granted.
        """
        quota = self.find(pk)
        values = self.parse_body(request, partial=True)
        versions = etags.if_match(request, required=True)

        def act() -> Any:
            return quotas.change_quota(principal=self.principal, quota=quota, versions=versions, **values)

        return respond_preview(act, quota.tenant) if dry_run(request) else self.answer(act())

    @extend_schema(parameters=[DRY_RUN], responses={204: None, 200: PreviewSerializer})
    def delete(self, request: Request, pk: int) -> Response:
        """Remove a quota of which nothing is used; needs If-Match."""
        quota = self.find(pk)
        versions = etags.if_match(request, required=True)

        def act() -> None:
            quotas.delete_quota(principal=self.principal, quota=quota, versions=versions)

        if dry_run(request):
            return respond_preview(act, quota.tenant)
        act()
        return Response(status=204)
