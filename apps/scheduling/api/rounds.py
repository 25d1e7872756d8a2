"""Views of /rounds/."""

from typing import Any

from django_filters import rest_framework as filters
from rest_framework.request import Request

from apps.quotas.api.methods import lists, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.scheduling.api import serializers
from apps.scheduling.models import Round
from gpucloud.api.filters import filters_of


class RoundView(ApiView):
    """The common part of round views. Rounds show every tenant's claims, so they are for operators."""

    queryset = Round.objects.select_related("pool")
    serializer_class = serializers.RoundSerializer
    read_scope = "claims:read"

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse everybody but operators."""
        super().initial(request, *args, **kwargs)
        self.principal.require_operator()


class RoundList(RoundView, ListMixin):
    """Rounds of the scheduler."""

    filterset_class = filters_of(
        Round,
        base=filters.FilterSet,
        pool="pool__name",
        since=filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte"),
    )
    get = lists("List rounds, newest first.")


class RoundDetail(RoundView):
    """One round."""

    serializer_class = serializers.RoundDetailSerializer
    get = shows("Show what a round saw and decided.")
