"""Views of /organisations/, /organisation-quotas/ and /tenants/{slug}/, with previews of changes of the tree."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.api.quotas import PendingClaimSerializer, PreviewedClaimSerializer
from apps.accounting.services.quota_changes import preview_of_levels, with_cohorts
from apps.quotas.api import organisations as routes
from apps.quotas.api import tenants as tenant_routes
from apps.quotas.api.serializers import TenantChangeSerializer
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Tenant
from apps.quotas.services import organisations, tenants
from apps.quotas.services.organisation_quotas import tenants_below
from apps.scheduling.api.claims import DRY_RUN, dry_run
from gpucloud.api import etags, shown
from gpucloud.api.serializers import Strict, either


class LevelSerializer(Strict):
    """A quota of an organisation before and after a change."""

    organisation = shown.text()
    pool = shown.text(null=True)
    resource = shown.text()
    hard_before = shown.integer("Null: no bound, or no such quota.", null=True)
    used_before = shown.integer()
    hard = shown.integer("Null: no bound, or removed.", null=True)
    used = shown.integer()
    free = shown.integer("Null: no bound.", null=True)
    excess = shown.integer("Held above the quota: nothing is taken away, and nothing new is granted until it is gone.")
    changed = shown.flag("False: it is listed only because it is exceeded.")


class LevelsPreviewSerializer(Strict):
    """The effects of a change of an organisation's quota, or of a move in the tree."""

    dry_run = shown.flag()
    levels = LevelSerializer(many=True, read_only=True)
    runnable = PreviewedClaimSerializer(many=True, read_only=True)
    pending = PendingClaimSerializer(many=True, read_only=True)
    claims_left_out = shown.integer("The number of waiting claims behind the first 200.")


def respond_preview(act: Callable[[], Any], of: Iterable[Tenant], organisation_ids: Collection[int] = ()) -> Response:
    """Return a response with the effects of `act`."""
    return Response(preview_of_levels(act, tenants=of, organisations=organisation_ids))


class OrganisationDetail(routes.OrganisationDetail):
    """One organisation."""

    change_parameters = {"PATCH": frozenset({"dry_run"})}

    @extend_schema(
        parameters=[DRY_RUN],
        responses={200: either("OrganisationOrPreview", routes.OrganisationChangeSerializer, LevelsPreviewSerializer)},
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change the name or the parent: it moves there with its parts and tenants and all that these hold."""
        row, values = self.find(slug), self.parse_body(request, partial=True)
        versions = etags.if_match(request)

        def act() -> Any:
            return organisations.change_organisation(
                principal=self.principal, organisation=row, versions=versions, **values
            )

        return respond_preview(act, tenants_below(row), _keys(values)) if dry_run(request) else self.respond(act())


class OrganisationQuotaList(routes.OrganisationQuotaList):
    """Quotas of organisations."""

    change_parameters = {"POST": frozenset({"dry_run"})}

    @extend_schema(
        parameters=[DRY_RUN], responses={201: routes.OrganisationQuotaSerializer, 200: LevelsPreviewSerializer}
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Limit what all tenants below an organisation hold together."""
        values = self.parse_body(request)

        def act() -> Any:
            return organisations.create_quota(principal=self.principal, **values)

        if dry_run(request):
            return respond_preview(act, tenants_below(values["organisation"]), _keys(values))
        return self.respond(act(), status=201)


class OrganisationQuotaDetail(routes.OrganisationQuotaDetail):
    """One quota of an organisation."""

    change_parameters = {"PATCH": frozenset({"dry_run"})}

    @extend_schema(
        parameters=[DRY_RUN],
        responses={
            200: either("OrganisationQuotaOrPreview", routes.OrganisationQuotaChangeSerializer, LevelsPreviewSerializer)
        },
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Set `hard`. Below the used amount nothing is taken away, and nothing new is granted."""
        row, values = self.find(pk), self.parse_body(request, partial=True)
        versions = etags.if_match(request)

        def act() -> Any:
            return organisations.change_quota(principal=self.principal, quota=row, versions=versions, **values)

        if dry_run(request):
            return respond_preview(act, tenants_below(row.organisation), [row.organisation_id])
        return self.respond(act())


class TenantDetail(tenant_routes.TenantDetail):
    """One tenant."""

    change_parameters = {"PATCH": frozenset({"dry_run"})}

    @extend_schema(
        parameters=[DRY_RUN],
        responses={200: either("TenantOrPreview", TenantChangeSerializer, LevelsPreviewSerializer)},
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change name, weight, cohort or organisation."""
        row, values = self.find(slug), self.parse_body(request, partial=True)
        versions = etags.if_match(request)

        def act() -> Any:
            return tenants.change_tenant(principal=self.principal, tenant=row, versions=versions, **values)

        if dry_run(request):
            return respond_preview(act, with_cohorts(row, values.get("cohort")), _keys(values))
        return self.respond(act())


def _keys(values: dict[str, Any]) -> list[int]:
    """Return the keys of the organisations that the body names."""
    named = (values.get("organisation"), values.get("parent"))
    return [row.pk for row in named if row is not None]
