"""Guarantees: lending the idle part to best-effort claims, giving it back, and placing claims on lent core."""

from collections.abc import Callable, Iterable
from datetime import datetime
from operator import itemgetter

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling import events
from apps.scheduling.core.gangs import most
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, Placed
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services.charging import borrowing, states
from apps.scheduling.services.charging.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.claims import lent_memory
from apps.scheduling.services.claims.lifecycle import WrongState, all_limits, locked, raise_frames, request_of
from apps.scheduling.services.failures import SET_ASIDE, each
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import Guard, read_reserved
from gpucloud.errors import Conflict

# The core is asked this often in one call; claims alike are asked about once.
MOST_ASKED = 100
# A claim's position: most urgent, then oldest first.
Position = tuple[int, int]


class NothingLent(Conflict, code="nothing-lent", title="Idle core is of no use to others here"):
    """The pool's sharing policy does not let others use idle core."""


@transaction.atomic
def lend(*, principal: Principal, claim: Claim, core: int, why: str) -> Claim:
    """Lend `core` points of the claim's guarantee on each of its GPUs, instead of the present number; 0 gives all back.

    Its guarantee, its charges and its limits page stay as they are (`charging.borrowing` says why). Raises WrongState,
    NothingLent.
    """
    claim = locked(claim)
    principal.require_role(claim.tenant, "member")
    before = claim.lent_core
    if core == before:
        return claim
    if core > before:
        _refuse_unlendable(claim, core)
    borrowing.lend(claim, core)
    states.move(claim, claim.state, rebalanced_at=timezone.now())
    audit.record(
        principal,
        "claim.lend" if core > before else "claim.give-back",
        claim,
        before={"lent_core": before},
        after={"lent_core": core, "why": why},
    )
    if core > before:
        events.wake_scheduler(claim.pool)
    return claim


def _refuse_unlendable(claim: Claim, core: int) -> None:
    if claim.state != ClaimState.ACTIVE or claim.borrowed_core or core > claim.core_request:
        raise WrongState(
            f"The claim is {claim.state}: only an active claim lends, and of its own guarantee.", state=claim.state
        )
    if not borrowing.lends(claim.pool):
        raise NothingLent(
            f"Pool {claim.pool.name} shares by {claim.pool.sharing_policy}: lending needs burst or preempt.",
            sharing_policy=claim.pool.sharing_policy,
        )


def place_on_lent(
    pool: Pool, waiting: Iterable[Claim], *, fence: Callable[[], None], after: Position | None = None
) -> Position | None:
    """Place these best-effort claims, in the queue's order, on lent core; return None when all were tried.

    It runs after a round that found no room of their own for them: borrowed core is not theirs, so it is no round's
    decision. It asks about a bounded number of claims, and returns the position at which it stopped; the next call
    continues `after` it, so that claims ahead that do not fit starve nobody behind them. `fence` raises, within a
    transaction, if the caller may no longer commit.
    """
    if not borrowing.lends(pool) or not _lending(pool).exists():
        return None
    now = timezone.now()
    ordered = sorted(((_position(claim), claim) for claim in waiting if _borrows_now(claim, now)), key=itemgetter(0))
    tries, last = _Tries(pool, now, fence), after
    for position, claim in ordered:
        if after is not None and position <= after:
            continue
        if tries.asked >= MOST_ASKED:
            return last
        tries.place(claim)
        last = position
    return None


def _position(claim: Claim) -> Position:
    return -claim.priority, claim.pk


def _borrows_now(claim: Claim, now: datetime) -> bool:
    """Return True if the claim may borrow now. A group is placed all or none, and a reserved claim has its own room."""
    alone = claim.best_effort and claim.group is None and claim.reservation_id is None
    aside = any(reason["code"] == SET_ASIDE for reason in claim.reasons)
    return alone and not aside and (claim.start_at is None or claim.start_at <= now)


class _Tries:
    """One attempt at a pool: its GPUs are read again only after something may have changed there."""

    def __init__(self, pool: Pool, now: datetime, fence: Callable[[], None]) -> None:
        self._pool, self._fence = pool, fence
        self._reserved, self._nodes = read_reserved(pool, now=now), read_nodes(pool)
        self._host = lent_memory.FreeHostMemory(pool)
        self._fleet: list[GpuState] | None = None
        # Room only shrinks meanwhile: a claim with the same request and terms as a refused one is refused, too.
        self._no_room: set[object] = set()
        self.asked = 0
        self._over_quota: set[object] = set()

    def place(self, claim: Claim) -> bool:
        """Place one claim; return True if there was room for it and its quotas allow it."""
        alike = request_of(claim), self._reserved.terms(claim)
        whose = claim.tenant_id, claim.user_id, alike
        if alike in self._no_room or whose in self._over_quota:
            return False
        if self._fleet is None:
            self._fleet = _lent_fleet(self._pool)
        fleet = self._fleet
        self.asked += 1
        helds = self._reserved.withheld_from(claim, lambda: fleet), self._host.withheld_from(claim, fleet)
        answer = place(fleet, alike[0], nodes=self._nodes, held=most(helds))
        if not isinstance(answer, Placed):
            self._no_room.add(alike)
            return False
        try:
            placed = _commit(claim, answer, self._fence)
        except (QuotaExceeded, BudgetExceeded):
            self._over_quota.add(whose)
            return False
        except _Changed:
            placed = False
        self._fleet, self._host = None, lent_memory.FreeHostMemory(self._pool)
        return placed


class _Changed(Exception):
    """A GPU is no longer as it was read."""


def _lending(pool: Pool) -> QuerySet[Gpu]:
    return Gpu.objects.filter(node__pool=pool, core_lent__gt=F("core_borrowed"))


def _lent_fleet(pool: Pool) -> list[GpuState]:
    """Return the pool's GPUs with lent core counted as free, and borrowed core as used.

    More may be borrowed than is lent: an owner has taken its own back. Then free core carries the rest.
    """
    either = Gpu.objects.filter(Q(core_lent__gt=0) | Q(core_borrowed__gt=0), node__pool=pool)
    more = {gpu.uuid: gpu.core_lent - gpu.core_borrowed for gpu in either}
    return [gpu.with_more(more.get(gpu.uuid, 0), 0) for gpu in read_fleet(pool)]


@transaction.atomic
def _commit(seen: Claim, answer: Placed, fence: Callable[[], None]) -> bool:
    """Commit as a round does, but borrow the core; return False if the claim changed meanwhile."""
    fence()
    claim = locked(seen)
    if claim.version != seen.version or claim.state not in WAITING:
        return False
    refuse_spent(claim.tenant)
    if not any(claim.charged.values()):
        states.charge_to(claim, claim.amounts)
    gpus = list(Gpu.objects.filter(uuid__in=answer.gpus).order_by("pk"))
    rows = [
        Assignment(
            claim=claim,
            gpu=gpu,
            **all_limits(claim),
            held_core=0,
            held_memory_mib=claim.memory_mib,
            borrowed_core=claim.core_request,
            generation=claim.generation,
        )
        for gpu in gpus
    ]
    for gpu in gpus:
        borrowed = capacity.borrow(gpu_id=gpu.pk, core=claim.core_request, memory_mib=claim.memory_mib)
        if not borrowed or Gpu.objects.filter(pk=gpu.pk).exclude(unhealthy="", cordoned=False).exists():
            raise _Changed
    if Guard([gpu.pk for gpu in gpus], now=timezone.now()).find_conflicts(claim):
        raise _Changed
    try:
        lent_memory.take_host_memory(rows)
    except lent_memory.NoHostMemoryToLend as error:
        raise _Changed from error
    Assignment.objects.bulk_create(rows)
    claim.borrowed_core = claim.core_request
    states.move(claim, ClaimState.ASSIGNED, reasons=[], assigned_at=timezone.now())
    node_ids = {gpu.node_id for gpu in gpus}
    raise_frames(node_ids)
    if any(node.pool_id != claim.pool_id or node.state != "ready" for node in Node.objects.filter(pk__in=node_ids)):
        raise _Changed
    return True


def own_what_is_free() -> int:
    """Give borrowing claims a guarantee of their own if their GPUs have enough free core; return the number given."""
    borrowers = Claim.objects.filter(borrowed_core__gt=0, state=ClaimState.ACTIVE).select_related("tenant", "pool")
    return each(borrowers.order_by("-priority", "pk"), _try_own)


def _try_own(seen: Claim) -> bool:
    try:
        _own(seen)
    except _Changed:
        return False
    return True


@transaction.atomic
def _own(seen: Claim) -> None:
    claim = locked(seen)
    if claim.state != ClaimState.ACTIVE or not claim.borrowed_core:
        raise _Changed
    assignments = list(claim.assignments.filter(borrowed_core__gt=0).select_related("gpu").order_by("gpu_id"))
    for assignment in assignments:
        core = assignment.borrowed_core
        if not capacity.promise_borrowed(gpu_id=assignment.gpu_id, core=core):
            raise _Changed
        assignment.change(held_core=core, borrowed_core=0, generation=assignment.generation + 1)
    # After the GPUs are locked: a booking that came before is seen now, and a later one sees this.
    if Guard([assignment.gpu_id for assignment in assignments], now=timezone.now()).find_conflicts(claim):
        raise _Changed
    # Room freed by preemption is withheld: it would be freed for one claim and given to another.
    kept = Claim.objects.in_queue().filter(nominated_gpus__overlap=[row.gpu.uuid for row in assignments])
    if kept.exists():
        raise _Changed
    claim.borrowed_core = 0
    states.move(claim, claim.state, generation=claim.generation + 1)
    raise_frames({assignment.gpu.node_id for assignment in assignments})
