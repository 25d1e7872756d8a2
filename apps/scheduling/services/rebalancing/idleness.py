"""Pools' rules for idle claims: they are reported, lend, or are suspended or released after a notice.

Level-triggered: each run reads the measurements, decides anew (`core.idleness`), and applies the decision, each claim
in a transaction of its own. So the next run does what a killed worker left undone, and a claim that works within its
notice is kept. A claim that lends gets its guarantee back from the arbiter and `waking`, not from this.
"""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models.node import FRESH
from apps.nodes.services.telemetry.peaks import beginning, peaks
from apps.nodes.services.telemetry.reading import Series
from apps.quotas.models import EventKind, Pool
from apps.quotas.models.pool import BackEnd, IdleRule
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.idleness import MeasuredClaim, Peak, Rule, Step, decide
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.charging import borrowing, states
from apps.scheduling.services.claims.lifecycle import locked, release_claim
from apps.scheduling.services.claims.suspending import find_refusal, try_suspend
from apps.scheduling.services.claims.suspension_reports import SUSPEND_REFUSED
from apps.scheduling.services.failures import each
from apps.scheduling.services.rebalancing.observing import bounds_of
from apps.scheduling.services.rebalancing.proposals import record_lent
from gpucloud.locks import exclusive

# A pool is checked this often within its shortest window, and no more often than this: what is read grows with both.
LOOKS, LEAST_BETWEEN = 30, timedelta(seconds=5)
# The code of the reason of an idle claim that could not be suspended when it was due.
NOT_NOW = "suspend-not-now"
IN_FORCE = (AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT)


def drive() -> int:
    """Check every pool that is due; return the number of claims changed. A second run at the same time does nothing."""
    with exclusive("idleness") as free:
        if not free:
            return 0
        now = timezone.now()
        ruled = ~Q(idle_rule=IdleRule.OFF) | Q(unused_seconds__isnull=False) | Q(claims__idle_since__isnull=False)
        pools = Pool.objects.filter(ruled).distinct().order_by("pk")
        due = [pool for pool in pools if pool.idle_looked_at is None or pool.idle_looked_at + _between(pool) <= now]
        return each(due, lambda pool: apply_rule(pool, now=now))


def apply_rule(pool: Pool, *, now: datetime) -> int:
    """Apply the pool's rule to each of its claims; return the number of claims changed."""
    rule, bounds = rule_of(pool), bounds_of(pool)
    seen = observe(pool, now=now)
    if pool.idle_looked_at is not None and now - pool.idle_looked_at > _shortest(pool):
        # No check for longer than a window: a claim that worked in between and rests again gets a new notice.
        seen = [(claim, replace(one, release_at=None)) for claim, one in seen]
    found = [(claim, decide(one, rule, bounds, int(now.timestamp()))) for claim, one in seen]
    news = [(claim, step) for claim, step in found if step.reason is not None or claim.idle_since is not None]
    changed = each(news, lambda pair: _take(*pair, now=now))
    # Last, so that the next run does what a killed one has left undone.
    Pool.objects.filter(pk=pool.pk).update(idle_looked_at=now)
    return changed


def rule_of(pool: Pool) -> Rule:
    """Return the pool's rule as the core takes it."""
    action = cast(Any, pool.idle_rule)
    return Rule(action, pool.idle_seconds, pool.idle_grace_seconds, pool.unused_seconds)


def observe(pool: Pool, *, now: datetime) -> list[tuple[Claim, MeasuredClaim]]:
    """Return every active claim of the pool with its measurements: a few queries, whatever their number."""
    rule = rule_of(pool)
    claims = Claim.objects.filter(pool=pool, state=ClaimState.ACTIVE).select_related("tenant", "pool").order_by("pk")
    windows = {"unused": rule.unused_seconds, "idle": None if rule.action == "off" else rule.idle_seconds}
    if not any(windows.values()):
        claims = claims.filter(idle_since__isnull=False)
    rows = list(claims)
    by_claim: dict[int, list[Assignment]] = defaultdict(list)
    for row in Assignment.objects.filter(claim__in=[claim.pk for claim in rows]).select_related("gpu__node"):
        if row.state != AssignmentState.RELEASED:
            by_claim[row.claim_id].append(row)
    found = {name: _peaks(by_claim, seconds, now) for name, seconds in windows.items() if seconds}
    return [(claim, _seen(claim, found, by_claim[claim.pk])) for claim in rows]


def _peaks(by_claim: dict[int, list[Assignment]], seconds: int, now: datetime) -> dict[int, list[Peak]]:
    """Return the peaks of the claims that can be judged: in force for the whole window, on nodes that are online."""
    begin = beginning(seconds, now=now)
    known = {claim: rows for claim, rows in by_claim.items() if all(_known(row, begin, now) for row in rows)}
    order = [(claim, row) for claim, rows in known.items() for row in rows]
    series = [Series(row.gpu.node_id, row.gpu_id, row.uid) for _, row in order]
    length = int((now - begin).total_seconds())
    peaked: dict[int, list[Peak]] = defaultdict(list)
    for (claim, _), peak in zip(order, peaks(series, begin=begin, now=now), strict=True):
        peaked[claim].append(Peak(length, peak.samples, peak.core, peak.throttled, peak.memory, peak.processes))
    return peaked


def _known(row: Assignment, begin: datetime, now: datetime) -> bool:
    in_force = row.state in IN_FORCE and row.in_force_at is not None and row.in_force_at <= begin
    seen = row.gpu.node.last_seen_at
    return in_force and seen is not None and seen >= now - FRESH


def _seen(claim: Claim, found: dict[str, dict[int, list[Peak]]], rows: list[Assignment]) -> MeasuredClaim:
    release_at = claim.idle_release_at
    alone = claim.pod is None and claim.group is None and not find_refusal(claim, SUSPEND_REFUSED)
    return MeasuredClaim(
        idle=found.get("idle", {}).get(claim.pk, ()),
        unused=found.get("unused", {}).get(claim.pk, ()),
        opted_out=not claim.rebalance,
        reserved=claim.reservation_id is not None,
        lends=borrowing.lends(claim.pool) and not claim.borrowed_core,
        can_suspend=alone and all(row.gpu.node.can_suspend and row.gpu.backend != BackEnd.MPS for row in rows),
        release_at=None if release_at is None else int(release_at.timestamp()),
    )


@transaction.atomic
def _take(seen: Claim, step: Step, *, now: datetime) -> bool:
    """Apply the step; a claim that was changed meanwhile is left, and the next run sees the change."""
    claim = locked(seen)
    if claim.version != seen.version or claim.state != ClaimState.ACTIVE:
        return False
    if step.reason is None:
        return _over(claim, step)
    changed = _tell(claim, step, now)
    if step.action == "shrink":
        changed |= _shrink(claim, step)
    if step.due and step.action == "suspend":
        return _suspend(claim, step) or changed
    if step.due:
        release_claim(principal=SYSTEM, claim=claim, why=f"its pool's rule for idle claims: {step.why}")
    return changed or step.due


def _suspend(claim: Claim, step: Step) -> bool:
    """Suspend the claim; say once why that cannot be now. The next run tries again: memory of its node may be free."""
    refusal = try_suspend(claim, by=SuspendedBy.IDLE, why=f"Its pool's rule for idle claims: {step.why}")
    if refusal is None:
        return True
    reasons = [{"code": NOT_NOW, "gpus": 0, "detail": f"It is idle, and cannot be suspended now. {refusal}"}]
    if claim.preempt_at is not None or claim.reasons == reasons:
        return False
    states.move(claim, claim.state, reasons=reasons)
    return True


def _tell(claim: Claim, step: Step, now: datetime) -> bool:
    """Record that the claim is idle, and when it is released; once for each."""
    release_at = None if step.release_at is None else datetime.fromtimestamp(step.release_at, tz=UTC)
    said = (claim.idle_reason, claim.idle_release_at and int(claim.idle_release_at.timestamp()))
    if said == (step.reason, step.release_at):
        return False
    rule = rule_of(claim.pool)
    seconds = cast(int, rule.unused_seconds if step.reason == "unused" else rule.idle_seconds)
    since = claim.idle_since or now - timedelta(seconds=seconds)
    facts = {"reason": step.reason, "action": step.action, "why": step.why}
    states.note(claim, "idle", **facts, release_at=release_at and release_at.isoformat())
    states.tell_of(claim, EventKind.CLAIM_IDLE, **facts, since=since, release_at=release_at)
    states.move(claim, claim.state, idle_since=since, idle_reason=step.reason, idle_release_at=release_at)
    return True


def _over(claim: Claim, step: Step) -> bool:
    """Record that the claim is used again, or cannot be judged; it gets back what it lent."""
    if claim.idle_since is None:
        return False
    states.note(claim, "awake", why=step.why)
    states.tell_of(claim, EventKind.CLAIM_AWAKE, why=step.why)
    # What was refused while it was idle may go when it is idle again.
    reasons = [reason for reason in claim.reasons if reason["code"] not in (NOT_NOW, SUSPEND_REFUSED)]
    states.move(claim, claim.state, reasons=reasons, **states.NOT_IDLE)
    if claim.lent_core:
        record_lent(claim, 0, policy="idle", why=step.why)
    return True


def _shrink(claim: Claim, step: Step) -> bool:
    floor = bounds_of(claim.pool).floor_percent
    core = claim.core_request - floor
    if core <= claim.lent_core:
        return False
    what = f"{core} of its {claim.core_request} points of core"
    why = f"{step.why} Best-effort claims may use {what} until it wants them."
    record_lent(claim, core, policy="idle", why=why)
    return True


def _shortest(pool: Pool) -> timedelta:
    windows = [pool.idle_seconds, *([pool.unused_seconds] if pool.unused_seconds else [])]
    return timedelta(seconds=min(windows))


def _between(pool: Pool) -> timedelta:
    return max(LEAST_BETWEEN, _shortest(pool) / LOOKS)
