"""Runs of the rotation: claims go out and come in as the core decides.

Level-triggered: each run reads the pools, decides anew (`rotation.planning`), and does what is due, each
claim in a transaction of its own under its lock. So a run that was killed needs no repair, and nothing is remembered of
a swap but for whom the room is: the claims that go out are suspended first, then the GPUs are kept for the one that
comes in (`nominated_gpus`), and a scheduling round places or resumes it there as it does any other. If it cannot come
in although there is room (its quota, its budget, a refusal of its node), it is paused, and the next one comes in.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.scheduling import events
from apps.scheduling.models import Claim, ClaimState, RotationMember
from apps.scheduling.models.claim import IN_QUEUE
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.failures import each
from apps.suspension.rotation import measured
from apps.suspension.rotation import planning as core
from apps.suspension.rotation.parts import is_nominated, is_out, key_of, part_of
from apps.suspension.rotation.places import write_places
from apps.suspension.rotation.scene import Pictured, picture
from apps.suspension.services import resume_claim, suspend_claim
from gpucloud import counters
from gpucloud.errors import Conflict
from gpucloud.locks import exclusive

# A claim for which there is room is placed by a round within a second.
GIVE_UP = timedelta(seconds=10)
PAUSE = timedelta(minutes=5)
# Claims that turn out in one run to be none that can go out; then it decides without them.
MOST_REFUSALS = 16
OUT = "Claims that do not fit together share its GPUs by time: it comes back by itself"


def drive() -> int:
    """Run every pool's rotation; return the number of claims changed. A second run at the same time does nothing."""
    with exclusive("rotation") as free:
        return each(_concerned(), run_pool) if free else 0


def _concerned() -> list[Pool]:
    """Return the pools whose claims rotate, and those that still have claims of a rotation that was switched off."""
    left = Q(claims__rotation__isnull=False) | Q(claims__suspended_by=SuspendedBy.ROTATION)
    return list(Pool.objects.filter(Q(oversubscribe__isnull=False) | left).distinct().order_by("pk"))


def run_pool(pool: Pool) -> int:
    """Do what is due in one pool; return the number of claims changed.

    1. Drop the parts of claims that take part no longer, and nominations that are over.
    2. Where rotation is off, or nothing waits, bring back who is out, and end.
    3. Picture the pool, ask the core, and make the swaps that are due.
    4. Write each claim's place, and when it will change.
    """
    changed = _tidy(pool)
    if pool.oversubscribe is None:
        return changed + each(_of_rotation(pool, state=ClaimState.SUSPENDED), _resume)
    waits = Claim.objects.filter(IN_QUEUE | Q(suspended_by=SuspendedBy.ROTATION), pool=pool)
    if not waits.exists():
        return changed + each(Claim.objects.filter(pool=pool, rotation__isnull=False).order_by("pk"), _leave)
    barred = set[str]()
    while True:
        now = timezone.now()
        seen = picture(pool, now=now, barred=barred)
        swaps = core.plan(core.Rules(pool.oversubscribe, pool.slice_seconds), seen.scene)
        refused = _give_up(seen, swaps, now)
        changed += refused
        if not refused:
            done, failed = _make(seen, swaps, now)
            changed += done
            if not failed or len(barred) >= MOST_REFUSALS:
                break
            barred.add(failed)
    write_places(seen, swaps)
    return changed


def _of_rotation(pool: Pool, **which: object) -> list[Claim]:
    rows = Claim.objects.filter(pool=pool, suspended_by=SuspendedBy.ROTATION, **which)
    return list(rows.select_related("tenant", "pool", "rotation").order_by("pk"))


def _tidy(pool: Pool) -> int:
    """Drop what is over: nominations of claims that wait no longer, and parts of claims that take none any more."""
    parts = RotationMember.objects.filter(claim__pool=pool).select_related("claim__tenant", "claim__pool")
    changed = 0
    for part in parts.order_by("pk"):
        claim = part.claim
        placed = (ClaimState.ASSIGNED, ClaimState.ACTIVE, ClaimState.SUSPENDING, ClaimState.RESUMING)
        goes_on = claim.waiting or is_out(claim) or claim.state in placed
        by_others = claim.suspended_by not in ("", SuspendedBy.ROTATION)
        if not goes_on or by_others or (pool.oversubscribe is None and not is_out(claim)):
            changed += _leave(claim)
        elif part.nominated_at is not None and not claim.waiting:
            changed += _forget(claim)
    return changed


def _make(seen: Pictured, swaps: list[core.Swap], now: datetime) -> tuple[int, str | None]:
    """Make the swaps that are due; return the number of claims changed, and one that cannot go out, if any."""
    changed = 0
    for swap in swaps:
        if swap.at > now.timestamp():
            continue
        for key in swap.out:
            try:
                gone = _put_out(seen, key, swap.served, now)
            except Conflict:
                return changed, key
            changed += gone
            if not gone:
                # It has changed meanwhile: the next run decides anew.
                break
        else:
            changed += _let_in(seen, swap, now)
    return changed, None


def _give_up(seen: Pictured, swaps: list[core.Swap], now: datetime) -> int:
    """Keep no GPUs any more for claims that do not come in; return their number.

    One that had room for a while is refused for another reason than room, and paused; so is one that nobody can make
    room for now. For one whose time has not come, as another one took the room, nothing is kept meanwhile.
    """
    by_claim, dropped = {swap.into: swap for swap in swaps}, 0
    for key, claim in seen.claims.items():
        gpus, swap = set(claim.nominated_gpus or ()), by_claim.get(key)
        if not is_nominated(claim) or gpus & seen.moving:
            continue
        if swap is not None and swap.out:
            if swap.at > now.timestamp():
                dropped += _drop(claim, now, pause=False)
        elif _free_since(seen, claim, gpus) + GIVE_UP < now:
            dropped += _drop(claim, now, pause=True)
    return dropped


def _free_since(seen: Pictured, claim: Claim, gpus: set[str]) -> datetime:
    """Return since when the claim's GPUs are kept for it and nobody is on the way out there."""
    part = part_of(claim)
    assert part is not None
    assert part.nominated_at is not None
    beside = (one for one in seen.scene.waiting if gpus & set(one.gpus) and one.key != key_of(claim))
    left = (measured.last(seen.claims[one.key].timeline, ClaimState.SUSPENDED) for one in beside)
    return max([part.nominated_at, *(at for at in left if at is not None)])


@transaction.atomic
def _put_out(seen: Pictured, key: str, served: float, now: datetime) -> bool:
    """Suspend the claim, and count what it was served. Raises Conflict if it cannot be suspended."""
    before = seen.claims[key]
    claim = locked(before)
    if claim.version != before.version or claim.state != ClaimState.ACTIVE:
        return False
    one = next(member for member in seen.scene.inside if member.key == key)
    _write_part(claim, served if one.served is None else one.served, now, paused_until=None)
    suspend_claim(principal=SYSTEM, claim=claim, by=SuspendedBy.ROTATION, why=OUT)
    return True


@transaction.atomic
def _let_in(seen: Pictured, swap: core.Swap, now: datetime) -> bool:
    """Keep the GPUs for the claim, and let it resume there."""
    before = seen.claims[swap.into]
    claim = locked(before)
    waits = claim.waiting or claim.state == ClaimState.SUSPENDED
    if claim.version != before.version or not waits or is_nominated(claim):
        return False
    one = next(member for member in seen.scene.waiting if member.key == swap.into)
    served, part = swap.served if one.served is None else one.served, part_of(claim)
    if part is not None and part.paused_until is not None:
        # What it missed while it could not come in is not made up for.
        served = max(served, core.beginning(other for other in seen.scene.inside if set(other.gpus) & set(swap.gpus)))
    _write_part(claim, served, now, nominated_at=now, paused_until=None)
    if claim.state == ClaimState.SUSPENDED:
        claim = resume_claim(principal=SYSTEM, claim=claim, by=SuspendedBy.ROTATION)
    states.move(claim, claim.state, nominated_gpus=list(swap.gpus))
    transaction.on_commit(lambda: counters.ROTATIONS.add(claim.pool.name))
    return True


@transaction.atomic
def _resume(seen: Claim) -> bool:
    """Let a claim wait in the queue for its GPUs like any other."""
    claim = locked(seen)
    if not is_out(claim) or claim.state != ClaimState.SUSPENDED:
        return False
    resume_claim(principal=SYSTEM, claim=claim, by=SuspendedBy.ROTATION)
    return True


@transaction.atomic
def _drop(seen: Claim, now: datetime, *, pause: bool) -> bool:
    """Keep nothing for the claim any more; with `pause`, take it out of the queue, and try it again later."""
    claim = locked(seen)
    if not is_nominated(claim):
        return False
    if pause and claim.waits_to_resume and claim.suspended_by == SuspendedBy.ROTATION:
        why = "; ".join(reason["detail"] for reason in claim.reasons) or "It was not granted its GPUs"
        claim = suspend_claim(principal=SYSTEM, claim=claim, by=SuspendedBy.ROTATION, why=why)
    states.move(claim, claim.state, nominated_gpus=None)
    RotationMember.objects.filter(claim=claim).update(nominated_at=None, paused_until=now + PAUSE if pause else None)
    events.wake_scheduler(claim.pool)
    return True


@transaction.atomic
def _forget(seen: Claim) -> bool:
    """Remove the nomination of a claim that waits no longer; one that its node could not resume is paused."""
    claim = locked(seen)
    if claim.waiting:
        return False
    claim.change(nominated_gpus=None)
    until = timezone.now() + PAUSE if claim.state == ClaimState.SUSPENDED else None
    RotationMember.objects.filter(claim=claim).update(nominated_at=None, paused_until=until)
    return True


@transaction.atomic
def _leave(seen: Claim) -> bool:
    """End the claim's part in the rotation."""
    claim = locked(seen)
    part = RotationMember.objects.filter(claim=claim).first()
    if part is None:
        return False
    if part.nominated_at is not None:
        claim.change(nominated_gpus=None)
        events.wake_scheduler(claim.pool)
    if part.served_ms is not None:
        states.note(claim, "rotation_end", served_gpu_seconds=part.served_ms // 1000)
    part.delete()
    return True


def _write_part(claim: Claim, served: float, now: datetime, **values: object) -> None:
    """Record what the claim was served up to now; the first time, also that it takes part."""
    part = RotationMember.objects.filter(claim=claim).first()
    facts = {"served_ms": int(served * 1000), "counted_to": now, **values}
    RotationMember.objects.update_or_create(claim=claim, defaults=facts)
    if part is None or part.served_ms is None:
        states.note(claim, "rotation_begin", served_gpu_seconds=int(served))
