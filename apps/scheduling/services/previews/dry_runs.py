"""Dry runs: the real services in a transaction that is rolled back, so a preview cannot differ from the act."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.quotas.principals import Principal
from apps.scheduling.core import gangs
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import Held, Placed, Refused
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services.cycles.queue import queue_entry
from apps.scheduling.services.cycles.resuming import place_resumed
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import read_reserved
from apps.scheduling.services.fleet.resume_places import ResumePlaces
from apps.scheduling.services.reclaiming.reclaim import would_reclaim


def rehearse(
    act: Callable[[], Claim], show: Callable[[Claim], dict[str, Any]], *, asks_anew: Principal | None = None
) -> dict[str, Any]:
    """Return the claim as it would be after `act`. Nothing is stored or sent. Raises whatever `act` raises.

    A waiting claim is tried on the pool as it is now, before all others in the queue: `state`, `reasons` and `gpus` say
    where it would be. For a new claim, `asks_anew` is the caller, and `reclaims` lists the claims that would have to go
    for it.
    """
    with transaction.atomic():
        claim = act()
        shown = {**show(claim), "dry_run": True}
        if claim.instance_of is not None:
            # Its one place was tried by `act`.
            shown["gpus"] = list(claim.assignments.live().values_list("gpu__uuid", flat=True))
        transaction.set_rollback(True)
    if claim.waiting and claim.instance_of is None:
        pool, gpus = claim.pool, read_fleet(claim.pool)
        reserved = read_reserved(pool, now=timezone.now())
        places = reserved.resume_places(claim) if claim.waits_to_resume else None
        if places is not None:
            gpus = [gpu for gpu in gpus if gpu.uuid in places.all]
        held = reserved.withheld_from(claim, lambda: gpus)
        fleet = Fleet(gpus, read_nodes(pool), policy=pool.placement_policy)
        answer = _not_yet(claim) or _place(fleet, claim, places, held)
        refused = isinstance(answer, Refused)
        if not claim.waits_to_resume:
            shown["state"] = "queued" if refused else "assigned"
        shown["gpus"] = [] if isinstance(answer, Refused) else [uuid for placed in answer for uuid in placed.gpus]
        shown["reasons"] = [asdict(reason) for reason in answer.reasons] if isinstance(answer, Refused) else []
    if asks_anew is not None:
        shown["reclaims"] = would_reclaim(claim, principal=asks_anew) if claim.waiting else None
    return shown


def _place(fleet: Fleet, claim: Claim, places: ResumePlaces | None, held: Held) -> tuple[Placed, ...] | Refused:
    """Place the claim as the core is asked about it: an elastic group with all claims with which it starts."""
    entry, size = queue_entry(claim), claim.group_size or 1 if claim.begins_group else 1
    ask = Ask(tuple(replace(entry, id=f"{entry.id} {number}") for number in range(size)))
    if places is None:
        return gangs.place_all(fleet, ask, held=held)
    answer, _ = place_resumed(fleet, ask, places, held=held)
    return answer


def _not_yet(claim: Claim) -> Refused | None:
    """Return why the claim would not be asked now: its start time has not come, or its group is not complete."""
    others = Claim.objects.none()
    if claim.begins_group:
        # The others are made with it.
        _, early = gangs.ready([replace(queue_entry(claim), group=None)], now=timezone.now().timestamp())
        return early.get(str(claim.uid))
    if claim.group is not None:
        others = Claim.objects.filter(tenant=claim.tenant_id, group=claim.group, state__in=WAITING)
    waiting = {other.uid: other for other in [*others.filter(pool=claim.pool_id).select_related("tenant"), claim]}
    _, early = gangs.ready(map(queue_entry, waiting.values()), now=timezone.now().timestamp())
    return early.get(str(claim.uid))
