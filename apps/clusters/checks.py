"""Checks of what was stored before it was refused: `manage.py check --database default`."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as CheckWarning
from django.db import ProgrammingError, transaction
from django.db.models import Count

from apps.nodes.models import Node

NO_KEY, TAKEN_TWICE = "clusters.W001", "clusters.W002"


@register(Tags.database)
def check_nodes(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return warnings about nodes that are DRA drivers without a webhook's key, and about names taken twice."""
    if not databases:
        return []
    try:
        with transaction.atomic():
            return [*_find_missing_key(), *_find_names_taken_twice()]
    except ProgrammingError:
        # `migrate` runs the checks first: there are no tables yet, or not all of their columns.
        return []


def _find_missing_key() -> list[CheckMessage]:
    if settings.ADMISSION_DEVICES_KEYS or not Node.objects.filter(dra=True).exists():
        return []
    return [
        CheckWarning(
            "Nodes offer their GPUs by Dynamic Resource Allocation, and ADMISSION_DEVICES_KEYS is not set: whoever "
            "reaches the webhooks can charge tenants.",
            hint="Set it, and apply the webhook configurations again (docs/dra.md).",
            id=NO_KEY,
        )
    ]


def _find_names_taken_twice() -> list[CheckMessage]:
    """Return a warning for each name in Kubernetes of several nodes of a pool: agents can no longer take one twice."""
    named = Node.objects.exclude(kubernetes_node="")
    taken = named.values("pool", "kubernetes_node").annotate(count=Count("pk")).filter(count__gt=1)
    found: list[CheckMessage] = []
    for row in taken.order_by("pool", "kubernetes_node"):
        nodes = named.filter(pool=row["pool"], kubernetes_node=row["kubernetes_node"]).order_by("name")
        names = ", ".join(nodes.values_list("name", flat=True))
        found.append(
            CheckWarning(
                f"Nodes {names} have the same name in Kubernetes, {row['kubernetes_node']}.",
                hint="Forget those that are gone (gpucloud node forget), or set GPUCLOUD_KUBERNETES_NODE on them.",
                id=TAKEN_TWICE,
            )
        )
    return found
