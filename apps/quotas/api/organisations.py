"""/organisations/: the tree above tenants. /organisation-quotas/: limits of what all tenants below hold together."""

from typing import Any

from django.core.validators import RegexValidator
from django_filters import rest_framework as filters
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.serializers import RESOURCE_HELP, RESOURCE_WRONG, OrganisationBySlug, PoolByName, amount_field
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Organisation, OrganisationQuota
from apps.quotas.models.organisation import MOST_LEVELS
from apps.quotas.models.resource import RESOURCE
from apps.quotas.models.row import MOST_NAME
from apps.quotas.models.tenant import SLUG
from apps.quotas.services import organisations
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns


class OrganisationSerializer(Strict):
    """An organisation, or a part of one."""

    slug = serializers.RegexField(SLUG, help_text="Lower-case letters, digits and dashes; 63 at most; never changes.")
    name = serializers.CharField(max_length=MOST_NAME, required=False, help_text="For people; the slug unless given.")
    parent = OrganisationBySlug(  # type: ignore[assignment]  # a field's serializer, elsewhere
        allow_null=True,
        default=None,
        help_text=f"The organisation that it is a part of; null: none. At most {MOST_LEVELS} levels.",
    )
    changed = Columns(Organisation, "version created_at updated_at")


class OrganisationChangeSerializer(OrganisationSerializer):
    """Changeable fields of an organisation."""

    slug = shown.text()


class OrganisationView(ApiView):
    """Base of the views of organisations."""

    serializer_class = OrganisationSerializer
    read_scope, write_scope = "tenants:read", "tenants:write"
    lookup_key = "slug"
    queryset = Organisation.objects.select_related("parent")


class OrganisationList(OrganisationView, ListMixin):
    """Organisations: the tree above tenants."""

    operator_methods = CHANGES
    filterset_class = filters_of(Organisation, "slug", parent="parent__slug")
    get = lists("List organisations.")

    @idempotent
    def post(self, request: Request) -> Response:
        """Create an organisation, or a part of one. Without quotas it limits nothing."""
        values: dict[str, Any] = self.parse_body(request)
        values.setdefault("name", values["slug"])
        return self.answer(organisations.create_organisation(principal=self.principal, **values), status=201)


class OrganisationDetail(OrganisationView):
    """One organisation."""

    serializer_class = OrganisationChangeSerializer
    get = shows("Show an organisation.")
    patch = changes(
        organisations.change_organisation,
        "organisation",
        "Change the name or the parent: it moves there with its parts and tenants and all that these hold.",
    )
    delete = removes(
        organisations.delete_organisation, "organisation", "Remove an organisation without parts and tenants."
    )


class OrganisationQuotaSerializer(Strict):
    """A quota of an organisation: a limit of what all tenants below it hold together."""

    id = shown.integer(source="pk")
    organisation = OrganisationBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: all pools together.")
    resource = serializers.RegexField(RESOURCE, help_text=RESOURCE_HELP, error_messages={"invalid": RESOURCE_WRONG})
    hard = amount_field("organisation_hard", "unlimited, use is counted only")
    used = shown.integer()
    excess = shown.integer("Held above `hard` when that was lowered; it falls as claims end.")
    free = shown.integer("Amount that can still be charged. Null: no bound.", null=True)
    changed = Columns(OrganisationQuota, "version created_at updated_at")


class OrganisationQuotaChangeSerializer(OrganisationQuotaSerializer):
    """Changeable fields of an organisation's quota."""

    organisation = shown.text(source="organisation.slug")
    pool = shown.text(null=True, source="pool.name")
    resource = shown.text(RESOURCE_HELP)


class OrganisationQuotaView(ApiView):
    """Base of the views of organisations' quotas."""

    serializer_class = OrganisationQuotaSerializer
    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = OrganisationQuota.objects.select_related("organisation", "pool")


class OrganisationQuotaList(OrganisationQuotaView, ListMixin):
    """Quotas of organisations."""

    operator_methods = CHANGES
    filterset_class = filters_of(
        OrganisationQuota,
        organisation="organisation__slug",
        pool="pool__name",
        resource=filters.CharFilter(validators=[RegexValidator(RESOURCE, RESOURCE_WRONG)]),
    )
    get = lists("List quotas of organisations.")
    post = creates(organisations.create_quota, "Limit what all tenants below an organisation hold together.")


class OrganisationQuotaDetail(OrganisationQuotaView):
    """One quota of an organisation."""

    serializer_class = OrganisationQuotaChangeSerializer
    get = shows("Show a quota of an organisation.")
    patch = changes(
        organisations.change_quota,
        "quota",
        "Set `hard`. Below the used amount nothing is taken away, and nothing new is granted.",
    )
    delete = removes(organisations.delete_quota, "quota", "Remove a quota of an organisation, even if it is used.")
