"""The rebalancer: it finds changes by the pool's policy, proposes them, and applies those that it may.

In a pool that allows it, it applies changes that cost the owner nothing and can be undone at any moment: lending,
giving back, and `core_limit`. A change that charges (a larger guarantee), or cannot be undone at will (less memory, a
smaller guarantee), waits for the consent of somebody who might have asked for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps import rebalancing as core
from apps.quotas.models import Pool, RebalanceMode
from apps.quotas.models.pool import IdleRule
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.rebalancing.values import Change, Observation
from apps.scheduling.models import Claim, ClaimState, Proposal, ProposalState
from apps.scheduling.models.claim import PLACED
from apps.scheduling.models.proposal import MOVES, ProposalKind
from apps.scheduling.providers import lending_replays, move_orders
from apps.scheduling.services.charging import borrowing
from apps.scheduling.services.claims.lifecycle import WrongState, end_assignments, locked
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.failures import each
from apps.scheduling.services.rebalancing import guarantees
from apps.scheduling.services.rebalancing.observing import bounds_of, observe
from gpucloud.api import etags
from gpucloud.errors import Conflict, GpucloudError
from gpucloud.locks import exclusive

REBALANCER = Principal(name="rebalancer", is_operator=True)
ENDED = (ClaimState.RELEASING, ClaimState.RELEASED)
CARRIED_OUT = frozenset({ProposalKind.LEND, ProposalKind.GIVE_BACK, ProposalKind.LIMIT, *MOVES})


class RebalancingOff(Conflict, code="rebalancing-off", title="The pool is not rebalanced"):
    """The pool's mode is `off`."""


class ProposalStale(Conflict, code="proposal-stale", title="The claim has changed since"):
    """The claim has changed since the change was proposed."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: the number of claims considered, the outcome of each change, or why there are none."""

    pool: Pool
    considered: int
    proposals: list[Proposal]
    dry_run: bool = False
    why: str | None = None
    # What each policy would have done in the last days; only if that was asked for.
    replay: dict[str, Any] | None = None


def rebalance(*, principal: Principal, pool: Pool, dry_run: bool = False, now: datetime | None = None) -> RunResult:
    """Run the rebalancer over a pool's claims; a dry run stores nothing. Raises RebalancingOff, RoleMissing.

    One run of a pool at a time: a second one finds nothing.
    """
    principal.require_operator()
    if pool.rebalance_mode == RebalanceMode.OFF and not dry_run:
        raise RebalancingOff(
            f"Pool {pool.name} has rebalance_mode off: set it to propose or apply, or ask for a dry run.",
            pool=pool.name,
        )
    now = now or timezone.now()
    if dry_run:
        return _plan(pool, now)
    with exclusive(lock_name(pool)) as free:
        if not free:
            return RunResult(pool, 0, [], why="Another run of this pool is under way: ask again in a moment.")
        # In a savepoint: an error of the database would otherwise prevent the release of the lock.
        with transaction.atomic():
            found = _plan(pool, now)
            if principal != REBALANCER:
                # Somebody started the run; its changes have rows of their own.
                counts = {"considered": found.considered, "changes": len(found.proposals), "why": found.why}
                audit.record(principal, "pool.rebalance", pool, after=counts)
        taken: list[Proposal] = []
        each(found.proposals, partial(_take_into, taken))
        return replace(found, proposals=taken, dry_run=False)


def preview_policy(*, principal: Principal, pool: Pool, policy: str | None, days: int | None) -> RunResult:
    """Return what a run by this policy would change, and with `days` a replay of them. Raises RoleMissing."""
    principal.require_operator()
    # Of this object only: nothing is saved.
    pool.rebalance_policy = policy or pool.rebalance_policy
    found = rebalance(principal=principal, pool=pool, dry_run=True)
    return found if days is None else replace(found, replay=lending_replays.get().replay_pool(pool, days=days))


def end_lending() -> int:
    """Give back lent core in pools that are no longer rebalanced, or whose policy lends nothing.

    Return the number of claims.
    """
    lent = Claim.objects.filter(lent_core__gt=0).select_related("tenant", "pool").order_by("pk")
    over = [claim for claim in lent if not (_lends_still(claim.pool) and borrowing.lends(claim.pool))]
    return each(over, _end_one)


def _lends_still(pool: Pool) -> bool:
    """Return True if anything in the pool may lend: the rebalancer, or its rule for idle claims."""
    return pool.rebalance_mode != RebalanceMode.OFF or pool.idle_rule == IdleRule.SHRINK


def _end_one(claim: Claim) -> bool:
    why = f"Pool {claim.pool.name} has rebalance_mode {claim.pool.rebalance_mode} and shares by "
    guarantees.lend(principal=REBALANCER, claim=claim, core=0, why=f"{why}{claim.pool.sharing_policy}.")
    return True


def expire_proposals() -> int:
    """Expire the proposals for claims that are gone, or going; return the number of proposals."""
    gone = Proposal.objects.filter(state=ProposalState.PROPOSED, claim__state__in=ENDED)
    return each(gone.order_by("pk"), partial(expire, if_ended=True))


@transaction.atomic
def expire(seen: Proposal, *, if_ended: bool = False) -> bool:
    """Expire an open proposal that a run does not find any more, or only if its claim has ended; return if it did.

    The claim is locked first, as everywhere: one that is being preempted may come back meanwhile.
    """
    claim = locked(seen.claim)
    proposal = Proposal.objects.select_for_update().filter(pk=seen.pk, state=ProposalState.PROPOSED).first()
    if proposal is None or (if_ended and claim.state not in ENDED):
        return False
    words = f"The claim is {claim.state}." if if_ended else "A later run does not find it any more."
    mark_decided(proposal, ProposalState.EXPIRED, by=REBALANCER.name, words=words)
    proposal.change(**_decision(proposal))
    return True


def lock_name(pool: Pool) -> str:
    """Return the name of the lock that a run of the pool holds."""
    return f"rebalancer:{pool.name}"


def _plan(pool: Pool, now: datetime) -> RunResult:
    """Return the policy's changes as proposals that are not saved yet."""
    seen = observe(pool, now=now)
    policy = core.POLICIES[pool.rebalance_policy]
    changes = core.decide(policy, seen, bounds_of(pool), int(now.timestamp()))
    claims = Claim.objects.select_related("tenant", "pool").in_bulk(
        [change.claim for change in changes], field_name="uid"
    )
    by_uid = {str(uid): claim for uid, claim in claims.items()}
    proposals = [_proposal(pool, by_uid[change.claim], change) for change in changes if change.claim in by_uid]
    why = None if proposals else _nothing(pool, seen, now)
    return RunResult(pool, len(seen), proposals, dry_run=True, why=why)


def _nothing(pool: Pool, seen: Sequence[Observation], now: datetime) -> str:
    """Return why a run finds nothing to change."""
    bounds = bounds_of(pool)
    if not seen:
        active = Claim.objects.filter(pool=pool, state=ClaimState.ACTIVE).count()
        if not active:
            return "No claim of the pool is active."
        return (
            f"{active} claims are active, and none of them was measured in the last {bounds.window_seconds} s, "
            "since its last change, on a node that reports; claims with `rebalance` false and those that borrow are "
            "left alone."
        )
    since = now.timestamp() - bounds.cool_down_seconds
    cooling = sum(item.changed_at is not None and item.changed_at > since for item in seen)
    rested = f"; {cooling} of them were changed within the cool-down of {bounds.cool_down_seconds} s" if cooling else ""
    how = f"by the policy {pool.rebalance_policy} and the pool's bounds"
    return f"{len(seen)} claims were looked at, and {how} none needs another share{rested}."


def _proposal(pool: Pool, claim: Claim, change: Change) -> Proposal:
    return Proposal(
        pool=pool,
        claim=claim,
        kind=change.kind,
        policy=pool.rebalance_policy,
        before=dict(change.before),
        after=dict(change.after),
        explanation=change.explanation,
        numbers=dict(change.numbers),
    )


def _take_into(taken: list[Proposal], proposal: Proposal) -> int:
    taken.append(take(proposal))
    return 1


@transaction.atomic
def take(proposal: Proposal) -> Proposal:
    """Apply the proposal if the pool and its kind allow that, else propose it."""
    allowed = proposal.pool.rebalance_mode == RebalanceMode.APPLY and proposal.kind in CARRIED_OUT
    # A guarantee is given back in any case: it is the owner's.
    if not allowed and proposal.kind != ProposalKind.GIVE_BACK:
        return _propose(proposal)
    words = ""
    try:
        act(proposal, principal=REBALANCER)
        state = ProposalState.APPLIED
    except GpucloudError as error:
        state, words = ProposalState.FAILED, error.detail[:2000]
    mark_decided(proposal, state, by=REBALANCER.name, words=words)
    proposal.save()
    return proposal


@transaction.atomic
def _propose(proposal: Proposal) -> Proposal:
    """Store the proposal, one a claim: an equal one is kept, another one is replaced."""
    old = Proposal.objects.select_for_update().filter(claim=proposal.claim, state=ProposalState.PROPOSED).first()
    if old is not None:
        if (old.kind, old.after) == (proposal.kind, proposal.after):
            return old
        mark_decided(old, ProposalState.EXPIRED, by=REBALANCER.name, words="A later run found something else.")
        old.change(**_decision(old))
    proposal.save()
    return proposal


@transaction.atomic
def act(proposal: Proposal, *, principal: Principal) -> None:
    """Change the claim as proposed, by the services that everybody uses. Raises ProposalStale, and what these raise.

    Under the claim's lock: values set since the run looked stand.
    """
    claim = locked(proposal.claim)
    _refuse_stale(proposal, claim, principal)
    if proposal.kind in (ProposalKind.LEND, ProposalKind.GIVE_BACK):
        guarantees.lend(principal=principal, claim=claim, core=proposal.after["lent_core"], why=proposal.explanation)
        return
    if proposal.kind == ProposalKind.REQUEUE:
        _requeue(claim)
        return
    if proposal.kind in MOVES:
        moved = move_orders.get().move_claim(principal=principal, claim=claim, gpus=proposal.after["gpus"])
        moved.change(rebalanced_at=timezone.now())
        return
    asked = claim.asked_core_limit or claim.core_limit
    changed = resize_claim(principal=principal, claim=claim, changes=ClaimChanges(**proposal.after))
    facts: dict[str, Any] = {"rebalanced_at": timezone.now()}
    if proposal.kind == ProposalKind.LIMIT:
        facts["asked_core_limit"] = None if changed.core_limit == asked else asked
    changed.change(**facts)


def _requeue(claim: Claim) -> None:
    """Release the locked claim, to be placed again. Raises WrongState."""
    if claim.state not in PLACED:
        raise WrongState(f"The claim is {claim.state}: there is nothing to place again.", state=claim.state)
    reasons = [{"code": "placed-again", "gpus": 0, "detail": "Released to be placed again, by an accepted proposal"}]
    end_assignments(claim, preempt_at=timezone.now(), rebalanced_at=timezone.now(), reasons=reasons)


def _refuse_stale(proposal: Proposal, claim: Claim, principal: Principal) -> None:
    stale = [name for name, value in proposal.before.items() if _value(claim, name) != value]
    if principal == REBALANCER and not claim.rebalance:
        stale.append("rebalance")
    if stale:
        # A proposal that the rebalancer tried has ended; one that somebody accepts is still open.
        cure = "the next run looks anew" if principal == REBALANCER else "dismiss this, the next run looks anew"
        words = f"The claim has changed since ({', '.join(sorted(stale))}): {cure}."
        raise ProposalStale(words, before=proposal.before)


def _value(claim: Claim, name: str) -> Any:
    if name == "gpus":
        return sorted(claim.assignments.live().values_list("gpu__uuid", flat=True))
    if name == "mig_start":
        return claim.assignments.live().values_list("mig_start", flat=True).first()
    return getattr(claim, name)


@transaction.atomic
def accept(*, principal: Principal, proposal: Proposal, versions: etags.Versions = None) -> Proposal:
    """Accept the proposal: the claim is changed now. Raises WrongState, and what `act` raises."""
    proposal = _locked(proposal, principal, versions)
    act(proposal, principal=principal)
    return _record_answer(proposal, ProposalState.APPLIED, principal)


@transaction.atomic
def dismiss(*, principal: Principal, proposal: Proposal, words: str = "", versions: etags.Versions = None) -> Proposal:
    """Dismiss the proposal; within the cool-down nothing is proposed for this claim. Raises WrongState."""
    proposal = _locked(proposal, principal, versions)
    proposal.claim.change(rebalanced_at=timezone.now())
    return _record_answer(proposal, ProposalState.DISMISSED, principal, words)


def _locked(proposal: Proposal, principal: Principal, versions: etags.Versions) -> Proposal:
    """Return the proposal under its lock. The claim is locked before it: the order of locks."""
    claim = locked(proposal.claim)
    principal.require_role(claim.tenant, "member")
    proposal = etags.lock(proposal, versions, "pool")
    proposal.claim = claim
    if proposal.state != ProposalState.PROPOSED:
        raise WrongState(f"The proposal is {proposal.state}: nothing is left to decide.", state=proposal.state)
    return proposal


def _record_answer(proposal: Proposal, state: str, principal: Principal, words: str = "") -> Proposal:
    mark_decided(proposal, state, by=principal.name, words=words)
    proposal.change(**_decision(proposal))
    audit.record(
        principal,
        f"proposal.{'accept' if state == ProposalState.APPLIED else 'dismiss'}",
        proposal,
        tenant=proposal.claim.tenant,
        before=proposal.before,
        after={**proposal.after, "words": words},
    )
    return proposal


def mark_decided(proposal: Proposal, state: str, *, by: str, words: str = "") -> Proposal:
    """Set the proposal to this end state, and return it; not saved."""
    proposal.state, proposal.words = state, words
    proposal.decided_by, proposal.decided_at = by, timezone.now()
    return proposal


def record_lent(claim: Claim, core: int, *, policy: str, why: str, numbers: dict[str, float] | None = None) -> None:
    """Lend this much of the claim's guarantee now, and record that as an applied change of this policy."""
    before = {"lent_core": claim.lent_core}
    kind = ProposalKind.LEND if core > claim.lent_core else ProposalKind.GIVE_BACK
    guarantees.lend(principal=REBALANCER, claim=claim, core=core, why=why)
    done = Proposal(pool=claim.pool, claim=claim, kind=kind, policy=policy, before=before, after={"lent_core": core})
    done.explanation, done.numbers = why, numbers or {}
    mark_decided(done, ProposalState.APPLIED, by=REBALANCER.name).save()


def _decision(proposal: Proposal) -> dict[str, Any]:
    return {name: getattr(proposal, name) for name in ("state", "words", "decided_by", "decided_at")}
