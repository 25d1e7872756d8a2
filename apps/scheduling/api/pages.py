"""The rows of a page of claims and of assignments, with what an answer shows beside them."""

from typing import Any

from django.db.models import QuerySet

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool
from apps.scheduling.models import Assignment, Claim, Reservation
from gpucloud.fastpath.page_queries import attach, others, page_query, remember

# An assignment shows its GPU's place and health, and whether its node is heard.
OF_GPU = (
    *others("gpu", Gpu, "uuid", "index", "unhealthy", "node"),
    *others("gpu__node", Node, "name", "last_seen_at"),
)
OF_CLAIM = (
    *("timeline", "nominated_gpus"),
    *others("pool", Pool, "name"),
    *others("reservation", Reservation, "uid"),
)


def claims(keys: list[int]) -> list[Claim]:
    """Return the claims with these keys, newest first, with their assignments."""
    rows = _claims(keys)
    attach(rows, "assignments", _assignments_of(keys))
    remember(rows)
    return rows


def assignments(keys: list[int]) -> list[Assignment]:
    """Return the assignments with these keys, newest first."""
    return _assignments(keys)


@page_query
def _claims(keys: Any) -> QuerySet[Claim]:
    rows = Claim.objects.select_related("tenant", "pool", "reservation", "rotation", "pack_profile")
    return rows.defer(*OF_CLAIM).filter(pk__among=keys).order_by("-pk")


@page_query
def _assignments_of(claims: Any) -> QuerySet[Assignment]:
    rows = Assignment.objects.select_related("gpu__node").defer(*OF_GPU)
    return rows.filter(claim__pk__among=claims).order_by("pk")


@page_query
def _assignments(keys: Any) -> QuerySet[Assignment]:
    rows = Assignment.objects.select_related("claim", "gpu__node")
    return rows.defer("carry", *others("claim", Claim, "uid"), *OF_GPU).filter(pk__among=keys).order_by("-pk")
