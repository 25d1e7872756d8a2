"""Places in the rotation, for pages and the API: who is in, who comes next, and about when."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from apps.nodes.models import Gpu
from apps.scheduling import events
from apps.scheduling.models import Assignment, RotationMember
from apps.suspension.rotation import planning as core
from apps.suspension.rotation.parts import part_of
from apps.suspension.rotation.scene import Pictured

# A time that changes by less is not written again.
SAME = timedelta(seconds=2)
Place = tuple[int, datetime | None]


def write_places(seen: Pictured, swaps: list[core.Swap]) -> None:
    """Write the places that have changed; new claims get one once it is known on which GPUs they come in."""
    changed = []
    for key, (place, changes_at) in places(seen.scene, swaps).items():
        claim = seen.claims[key]
        part = part_of(claim)
        if part is None:
            if place == 0:
                continue
            RotationMember.objects.get_or_create(
                claim=claim, defaults={"counted_to": claim.created_at, "place": place, "changes_at": changes_at}
            )
        elif part.place != place or not _same(part.changes_at, changes_at):
            RotationMember.objects.filter(pk=part.pk).update(place=place, changes_at=changes_at)
        else:
            continue
        changed.append(claim)
    if changed:
        events.claims_changed_on_commit(changed)


def places(scene: core.Scene, swaps: list[core.Swap]) -> dict[str, Place]:
    """Return the place and the time of the next change, by claim: 0 is in, 1 comes in next on its GPUs."""
    at = {key: swap.at for swap in swaps for key in (*swap.out, swap.into)}
    on = {swap.into: set(swap.gpus) for swap in swaps}
    found = {one.key: (0, _moment(at.get(one.key))) for one in scene.inside}
    before: list[set[str]] = []
    for one in core.in_order(scene.waiting, core.beginning([*scene.inside, *scene.waiting])):
        gpus = on.get(one.key) or (set(core.reach(one)) if one.gpus else set())
        if gpus:
            found[one.key] = (1 + sum(1 for other in before if other & gpus), _moment(at.get(one.key)))
            before.append(gpus)
    return found


def _moment(at: float | None) -> datetime | None:
    return None if at is None or at == core.NEVER else datetime.fromtimestamp(at, tz=UTC)


def _same(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) < SAME


def sharing(gpus: Iterable[Gpu]) -> list[RotationMember]:
    """Return the parts of the claims that share these GPUs by time, in the order of their places."""
    there = Assignment.objects.live().filter(gpu__in=[gpu.pk for gpu in gpus]).values("claim")
    rows = RotationMember.objects.filter(claim__in=there).select_related("claim__tenant")
    return list(rows.order_by("place", "pk"))
