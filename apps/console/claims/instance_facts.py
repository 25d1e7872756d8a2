"""Claims that share a MIG instance, as their pages show them."""

from collections.abc import Iterable
from typing import Any

from apps.scheduling.models import Assignment, Claim


def find_instance_facts(claim: Claim, live: Iterable[Assignment]) -> dict[str, Any] | None:
    """Return the claims in the claim's instance, and the room that is left for more; None if it opened none."""
    if claim.own_core is None:
        return None
    item = next(iter(live), None)
    inside = Claim.objects.live().filter(instance_of=claim.uid).select_related("tenant").order_by("pk")
    return {
        "claims": list(inside),
        "room": None if item is None else {"core": item.room_core, "memory_mib": item.room_memory_mib},
    }


def room_in_instance(claim: Claim, item: Assignment) -> dict[str, int] | None:
    """Return how far a claim can grow in the instance of another: its own part, and what nobody has taken."""
    assert claim.instance_of is not None
    rows = Assignment.objects.live().filter(claim__uid=claim.instance_of, room_core__isnull=False)
    instance = rows.values_list("room_core", "room_memory_mib").first()
    if instance is None:
        return None
    core, memory_mib = instance
    return {"core": item.taken_core + (core or 0), "memory_mib": item.taken_memory_mib + (memory_mib or 0)}
