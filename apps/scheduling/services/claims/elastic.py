"""Members of elastic groups: those with which a group runs, and the spare ones above its least number.

The oldest members are those with which it runs; `group_size` of its first claim is their number. A spare member is
released where room is needed, and the group goes on without it: it shrinks. The others go as a whole.
"""

from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

from django.db.models import Q

from apps.scheduling.models import Claim
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
