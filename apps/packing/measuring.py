"""Measurements for packing: what each claim of a pool does now, alone on its GPU or beside another claim.

A window counts only if nothing came to the GPU or left it meanwhile, and most of its seconds were measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import Avg, Count, Q

from apps.nodes.models import Sample
from apps.packing.planning import Device, Rates, Running
from apps.quotas.models import Pool
from apps.quotas.models.pool import BackEnd
from apps.rebalancing.values import Bounds
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, PackProfile, Proposal, ProposalState
from apps.scheduling.models.proposal import MOVES
from apps.scheduling.services.claims.suspending import find_refusal
from apps.scheduling.services.claims.suspension_reports import MOVE_REFUSED, SUSPEND_REFUSED
from apps.scheduling.services.fleet.devices import read_devices
from apps.scheduling.services.rebalancing.observing import bounds_of

IN_FORCE = (AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT)
# Of the seconds of a window, for it to count.
MEASURED = 0.9
# Programs change: what two claims lost beside each other is forgotten after this.
APART = timedelta(days=1)


class _Window(NamedTuple):
    rates: Rates
    throttled: float

    def wants(self, bounds: Bounds) -> bool:
        """Return True if the claim used its GPU, or waited for it."""
        return self.rates.core > bounds.idle_percent or self.throttled > bounds.throttled_percent


def observe(pool: Pool, *, now: datetime) -> tuple[list[Device], list[Running]]:
    """Return the pool's GPUs, and its claims on one GPU each; write the rates of those that are measured alone."""
    bounds = bounds_of(pool)
    rows = Assignment.objects.live().filter(gpu__node__pool=pool).exclude(state=AssignmentState.SUSPENDED)
    on: dict[str, list[Assignment]] = defaultdict(list)
    for row in rows.select_related("claim__tenant", "claim__pack_profile", "gpu__node").order_by("pk"):
        on[row.gpu.uuid].append(row)
    known = [row for here in on.values() for row in here if _is_known(row)]
    windows = _windows(pool, known, now - timedelta(seconds=bounds.window_seconds), now)
    held_back = _held_back(pool, now - timedelta(seconds=bounds.cool_down_seconds))
    running = []
    for row in known:
        window = windows.get(row.pk)
        wants = window is not None and window.wants(bounds)
        is_alone = len(on[row.gpu.uuid]) == 1
        if is_alone and window is not None and wants and window.rates.launches > 0:
            _write_alone(row.claim, window.rates, now)
        profile: PackProfile | None = getattr(row.claim, "pack_profile", None)
        one = Running(
            claim=str(row.claim.uid),
            gpu=row.gpu.uuid,
            core_request=row.core_request,
            memory_mib=row.memory_mib,
            alone=Rates(profile.launches, profile.core) if profile else None,
            now=window.rates if window else None,
            wants=wants,
            may_move=row.claim_id not in held_back
            and row.gpu.node.can_move
            and row.gpu.backend != BackEnd.MPS
            and may_move(row.claim),
            apart=_apart(profile, now),
        )
        if profile is not None:
            _write_kept(profile, None if is_alone else one.keeps)
        running.append(one)
    return list(_devices(pool, on, {row.pk for row in known})), running


def may_move(claim: Claim) -> bool:
    """Return True if packing may move the claim, as far as its own kind says."""
    bound = claim.pod is not None or claim.group is not None or claim.reservation_id is not None
    leaves = claim.preempt_at is not None or claim.suspends_at is not None or claim.idle_release_at is not None
    refused = find_refusal(claim, MOVE_REFUSED) or find_refusal(claim, SUSPEND_REFUSED)
    return claim.rebalance and not (bound or leaves or refused or claim.borrowed_core)


def write_apart(one: Claim, other: Claim, now: datetime) -> None:
    """Record that these two lost too much beside each other: for a day, they are not put together again."""
    for claim, partner in ((one, other), (other, one)):
        profile = PackProfile.objects.filter(claim=claim).first()
        if profile is not None:
            fresh = {uid: at for uid, at in profile.apart.items() if datetime.fromisoformat(at) > now - APART}
            PackProfile.objects.filter(pk=profile.pk).update(apart={**fresh, str(partner.uid): now.isoformat()})


def _is_known(row: Assignment) -> bool:
    return row.state in IN_FORCE and row.claim.state == ClaimState.ACTIVE and row.claim.gpu_count == 1


def _held_back(pool: Pool, since: datetime) -> set[int]:
    """Return the claims that rest from a change, rotate, or have another proposal."""
    other = Proposal.objects.filter(pool=pool, state=ProposalState.PROPOSED).exclude(kind__in=MOVES)
    rows = Claim.objects.live().filter(pool=pool)
    rows = rows.filter(Q(rebalanced_at__gt=since) | Q(rotation__isnull=False) | Q(pk__in=other.values("claim")))
    return set(rows.values_list("pk", flat=True))


def _windows(pool: Pool, rows: Iterable[Assignment], begin: datetime, now: datetime) -> dict[int, _Window]:
    """Return what was measured of each assignment whose GPU had the same claims all the time."""
    came = Q(state__in=IN_FORCE, in_force_at__gt=begin) | (~Q(state__in=IN_FORCE) & Q(updated_at__gt=begin))
    unsteady = set(Assignment.objects.filter(came, gpu__node__pool=pool).values_list("gpu", flat=True))
    steady = {row.uid: row for row in rows if row.gpu_id not in unsteady}
    nodes = {row.gpu.node_id for row in steady.values()}
    samples = Sample.objects.filter(node_id__in=nodes, gpu=None, assignment_uid__in=steady, at__gt=begin, at__lte=now)
    means = (
        samples.order_by()
        .values_list("assignment_uid")
        .annotate(
            Avg("launches_per_second"), Avg("core_percent"), Avg("throttled_percent"), Count("launches_per_second")
        )
    )
    least = MEASURED * (now - begin).total_seconds()
    return {
        steady[uid].pk: _Window(Rates(launches, core), throttled or 0.0)
        for uid, launches, core, throttled, seconds in means
        if seconds >= least
    }


def _write_alone(claim: Claim, rates: Rates, now: datetime) -> None:
    values = {"launches": rates.launches, "core": rates.core, "measured_at": now}
    claim.pack_profile, _ = PackProfile.objects.update_or_create(claim=claim, defaults=values)


def _write_kept(profile: PackProfile, kept: float | None) -> None:
    if profile.kept != kept:
        PackProfile.objects.filter(pk=profile.pk).update(kept=kept)


def _apart(profile: PackProfile | None, now: datetime) -> frozenset[str]:
    found = profile.apart.items() if profile else ()
    return frozenset(uid for uid, at in found if datetime.fromisoformat(at) > now - APART)


def _devices(pool: Pool, on: Mapping[str, list[Assignment]], known: set[int]) -> Iterable[Device]:
    for device in read_devices(pool):
        gpu = device.state
        yield Device(
            gpu=gpu.uuid,
            node=gpu.node,
            model=gpu.model,
            core_free=gpu.core_free,
            memory_free_mib=gpu.memory_free_mib,
            takes=gpu.schedulable and not gpu.unhealthy,
            others=sum(row.pk not in known for row in on.get(gpu.uuid, ())),
        )
