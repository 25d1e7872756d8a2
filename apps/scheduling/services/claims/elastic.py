"""Members of elastic groups: those with which a group runs, and the spare ones above its least number.

The oldest members are those with which it runs; `group_size` of its first claim is their number. A spare member is
released where room is needed, and the group goes on without it: it shrinks. The others go as a whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from agent import wire
from apps.scheduling.models import Claim, ElasticGroup
from apps.scheduling.models.claim import PLACED, WAITING

# Claims that have GPUs, or are charged.
HOLDS = Q(state__in=PLACED) | Q(state__in=WAITING, charged_vgpus__gt=0)


def find_spare(claims: Iterable[Claim]) -> set[int]:
    """Return the keys of the spare members among these claims, which have all that elastic groups hold."""
    groups: dict[UUID, list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.group_uid is not None:
            groups[claim.group_uid].append(claim)
    spare = set[int]()
    for members in groups.values():
        members.sort(key=lambda claim: claim.pk)
        # A member that joined later has 1.
        least = max(claim.group_size or 1 for claim in members)
        spare.update(claim.pk for claim in members[least:])
    return spare


def is_spare(claim: Claim) -> bool:
    """Return True if the claim's group goes on without it."""
    if claim.group_uid is None:
        return False
    return claim.pk in find_spare(Claim.objects.filter(HOLDS, group_uid=claim.group_uid))


def groups_on_the_wire(claims: Mapping[tuple[int, UUID], Sequence[str]]) -> dict[int, list[wire.Group]]:
    """Return the groups of each node, by the node's key, for their agents; `claims`: the claims by node and group."""
    if not claims:
        return {}
    rows = ElasticGroup.objects.filter(first__uid__in={uid for _, uid in claims}).select_related("first")
    known = {group.first.uid: group for group in rows}
    found: dict[int, list[wire.Group]] = defaultdict(list)
    for (node_id, uid), here in claims.items():
        # An agent would refuse a frame with more.
        if uid in known and len(found[node_id]) < wire.MAX_GROUPS:
            found[node_id].append(_on_the_wire(known[uid], list(dict.fromkeys(here))))
    return found


def _on_the_wire(group: ElasticGroup, here: list[str]) -> wire.Group:
    return wire.Group(
        uid=str(group.first.uid),
        name=group.first.group or "",
        least=group.least,
        most=group.first.group_most or 0,
        generation=group.generation,
        updated_at=group.updated_at.timestamp(),
        members=[wire.GroupMember(**{**member, **_seconds(member)}) for member in group.members],
        claims=here,
    )


def _seconds(member: Mapping[str, Any]) -> dict[str, float | None]:
    times = ("joined_at", "leaves_at")
    return {name: member[name] and datetime.fromisoformat(member[name]).timestamp() for name in times}
