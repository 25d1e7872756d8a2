"""The facts that a claim's page shows of its elastic group."""

from typing import Any

from django.utils.dateparse import parse_datetime

from apps.groups.members import state_of
from apps.scheduling.models import Claim, ElasticGroup


def find_group_facts(claim: Claim) -> dict[str, Any] | None:
    """Return range, state and members of the claim's group; None if it is in no elastic group."""
    rows = ElasticGroup.objects.select_related("first__tenant", "first__pool")
    group = rows.filter(first__uid=claim.group_uid).first() if claim.group_uid else None
    if group is None:
        return None
    members = [
        {
            **member,
            "rank": rank,
            "leaves_at": parse_datetime(member["leaves_at"] or ""),
            "is_this": member["claim"] == str(claim.uid),
        }
        for rank, member in enumerate(group.members)
    ]
    return {"least": group.least, "state": state_of(group), "generation": group.generation, "members": members}
