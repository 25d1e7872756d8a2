"""Packing: pairs of claims put together on a GPU, and parted, as proposals of their pool's rebalancing.

Level-triggered. Each run measures, plans anew (`planning`), proposes the moves or orders them where the pool's
`rebalance_mode` is `apply`, and withdraws proposals that it no longer finds. A pair is made only while claims of the
pool wait for GPUs: with a free GPU at hand, it would gain nothing.
"""

from datetime import datetime
from functools import partial

from django.db import transaction
from django.utils import timezone

from apps.packing import measuring
from apps.packing.planning import Step, plan
from apps.quotas.models import Pool, RebalanceMode
from apps.scheduling.models import Claim, ClaimState, Proposal, ProposalState
from apps.scheduling.models.proposal import MOVES
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.failures import each
from apps.scheduling.services.rebalancing.proposals import expire, take
from gpucloud import counters
from gpucloud.locks import exclusive

# The policy that a proposal names.
POLICY = "packing"


def drive() -> int:
    """Run in every pool that packs; return the number of changes. A second run at the same time does nothing."""
    with exclusive("packing") as free:
        if not free:
            return 0
        pools = Pool.objects.exclude(rebalance_mode=RebalanceMode.OFF).order_by("pk")
        return each(list(pools.filter(pack_keep_percent__isnull=False)), run)


def run(pool: Pool, *, now: datetime | None = None) -> int:
    """Measure and plan for one pool, and take its steps; return their number."""
    now = now or timezone.now()
    devices, running = measuring.observe(pool, now=now)
    waiting = Claim.objects.filter(pool=pool, state=ClaimState.QUEUED).count()
    keep_percent = pool.pack_keep_percent or 100
    steps = plan(devices, running, keep_percent=keep_percent, most_packed=waiting)
    named = {uid for step in steps for uid in (step.claim, step.partner)}
    claims = {str(claim.uid): claim for claim in Claim.objects.filter(uid__in=named).select_related("tenant", "pool")}
    gpus = {one.claim: one.gpu for one in running}
    # 1. Withdraw what is no longer found.
    found = {(claims[step.claim].pk, step.to_gpu) for step in steps}
    changed = _withdraw(pool, found)
    # 2. Propose, or order.
    for step in steps:
        changed += _take(_proposal(pool, step, claims, gpus[step.claim]), step, claims, now)
    return changed


def _proposal(pool: Pool, step: Step, claims: dict[str, Claim], from_gpu: str) -> Proposal:
    keeps, least = round(step.keeps, 1), pool.pack_keep_percent or 100
    if step.kind == "pack":
        words = (
            f"Claims wait for GPUs, and by the GPU time that it and the claim on that GPU took alone, both would keep "
            f"{keeps:g} % of their rates there; {least} % is enough in this pool."
        )
    else:
        words = (
            f"It or the claim beside it has {keeps:g} % of the launches a second that it had alone, and in this pool "
            f"each is to keep {least} %. The other GPU is free."
        )
    numbers = {"kept_percent": keeps, "pack_keep_percent": float(least)}
    profile = getattr(claims[step.claim], "pack_profile", None)
    if profile is not None:
        numbers |= {"launches_alone": round(profile.launches, 1), "core_alone_percent": round(profile.core, 1)}
    return Proposal(
        pool=pool, claim=claims[step.claim], kind=step.kind, policy=POLICY, before={"gpus": [from_gpu]},
        after={"gpus": [step.to_gpu]}, explanation=words, numbers=numbers,
    )  # fmt: skip


@transaction.atomic
def _take(proposal: Proposal, step: Step, claims: dict[str, Claim], now: datetime) -> bool:
    done = take(proposal)
    if done.state == ProposalState.APPLIED:
        transaction.on_commit(partial(counters.PACKS.add, proposal.pool.name, step.kind))
    if step.kind == "unpack" and done is proposal:
        measuring.write_apart(claims[step.claim], claims[step.partner], now)
    if done.state == ProposalState.FAILED:
        # It rests like one that was changed: the next runs would fail alike.
        locked(done.claim).change(rebalanced_at=now)
    return done is proposal


def _withdraw(pool: Pool, found: set[tuple[int, str]]) -> int:
    """Expire the open proposals that are not among these, by claim and GPU."""
    rows = Proposal.objects.filter(pool=pool, kind__in=MOVES, state=ProposalState.PROPOSED)
    gone = [row for row in rows.order_by("pk") if (row.claim_id, row.after["gpus"][0]) not in found]
    return each(gone, expire)
