"""The history of a pool's claims, from the ledger and the assignments.

The ledger says how much a claim was charged from which moment on, its assignments when it was on GPUs: what it held is
where both say so, as in `scheduling.services.charging.metering`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q

from apps.accounting.services.past_use import read_at
from apps.quotas.models import LedgerEntry, Pool, Resource, Tenant
from apps.quotas.models.pool import FairShare
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.services.charging.metering import between
from apps.scheduling.services.claims.lifecycle import request_of
from apps.scheduling.services.cycles.queue_order import entry_of
from apps.scheduling.services.fleet.devices import read_devices, read_nodes
from apps.whatif.values import PastClaim, Resize, Site, Size

# A replay of more would not end within a task's time (300 s) where most of them wait.
MOST_CLAIMS = 5000
CHARGES = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)
# Memory is charged from the same moment as core, but in a later row.
MOMENT_SECONDS = 0.5


class History(NamedTuple):
    """The claims of a period, and how many older ones were left out."""

    claims: list[PastClaim]
    left_out: int


class _Charge(NamedTuple):
    at: float
    pool: int | None
    resource: str
    amount: int


class _Held(NamedTuple):
    """A time for which a claim held this much on all of its GPUs together."""

    begin: float
    end: float
    core: int
    memory_mib: int


def read_site(pool: Pool, *, begin: datetime, end: datetime) -> Site:
    """Return the pool with all GPUs that its agents report today, whatever else their state."""
    return Site(
        gpus=tuple(device.state for device in read_devices(pool, Q(present=True))),
        nodes=tuple(read_nodes(pool)),
        begin=begin.timestamp(),
        end=end.timestamp(),
        policy=pool.placement_policy,
        patience_seconds=pool.patience_seconds,
        weights={str(pk): weight for pk, weight in Tenant.objects.values_list("pk", "weight")},
        remembers=pool.fair_share == FairShare.DECAYED,
        half_life_seconds=pool.half_life_seconds,
        past={str(key): past for key, past in read_at(pool, begin, half_life=pool.half_life_seconds).items()},
    )


def read_history(pool: Pool, *, begin: datetime, end: datetime) -> History:
    """Return the claims that waited or held GPUs within the period, oldest first; the newest `MOST_CLAIMS`."""
    found = between(Claim.objects.filter(pool=pool), begin=begin, end=end).exclude(start_at__gte=end)
    total = found.count()
    newest = list(found.order_by("-pk").select_related("tenant")[:MOST_CLAIMS])
    keys = [claim.pk for claim in newest]
    spans, charges = _spans(keys, end.timestamp()), _charges([claim.uid for claim in newest], end)
    window = begin.timestamp(), end.timestamp()
    claims = [_past(claim, spans[claim.pk], charges[claim.uid], window) for claim in reversed(newest)]
    return History(_without_broken_groups(claims), total - len(newest))


def _past(
    claim: Claim, spans: Sequence[tuple[float, float]], charges: Sequence[_Charge], window: tuple[float, float]
) -> PastClaim:
    begin, end = window
    held = list(_held(claim, spans, charges, end))
    inside = [piece._replace(begin=max(piece.begin, begin)) for piece in held if piece.end > begin]
    entry = entry_of(claim, tenant=str(claim.tenant_id), request=request_of(claim))
    facts: dict[str, Any] = {
        "arrives_at": max(claim.created_at, claim.start_at or claim.created_at).timestamp(),
        "suspensions": _suspensions(claim, begin),
        "is_of_pod": claim.pod is not None,
        "is_reserved": claim.reservation_id is not None,
    }
    if not inside:
        left = claim.released_at.timestamp() if claim.released_at is not None else None
        return PastClaim(entry, run_seconds=None, left_at=left, never_ran=True, **facts)
    sizes = [Size(piece.core // claim.gpu_count, piece.memory_mib // claim.gpu_count) for piece in inside]
    request = replace(entry.request, core_request=sizes[0].core, memory_mib=sizes[0].memory_mib)
    still = claim.state != ClaimState.RELEASED and inside[-1].end >= end
    return PastClaim(
        replace(entry, request=request),
        run_seconds=None if still else sum(piece.end - piece.begin for piece in inside),
        ran_before=held[0].begin < begin,
        resizes=tuple(_resizes(inside, sizes)),
        **facts,
    )


def _held(
    claim: Claim, spans: Sequence[tuple[float, float]], charges: Sequence[_Charge], end: float
) -> Iterable[_Held]:
    """Yield what the claim held, piece by piece, in the order of time; short pieces between two rows are left out."""
    moments = sorted({at for span in spans for at in span} | {charge.at for charge in charges if charge.at < end})
    levels: dict[tuple[str, int | None], int] = defaultdict(int)
    waiting = list(charges)
    for at, until in pairwise(moments):
        while waiting and waiting[0].at <= at:
            charge = waiting.pop(0)
            levels[charge.resource, charge.pool] += charge.amount
        core, memory = (
            max((amount for (of, _), amount in levels.items() if of == resource), default=0) for resource in CHARGES
        )
        if not charges:
            core, memory = claim.core_request * claim.gpu_count, claim.memory_mib * claim.gpu_count
        placed = any(first <= at and until <= last for first, last in spans)
        if placed and memory and until - at >= MOMENT_SECONDS:
            yield _Held(at, until, core, memory)


def _resizes(held: Sequence[_Held], sizes: Sequence[Size]) -> Iterable[Resize]:
    passed = 0.0
    for number, piece in enumerate(held):
        if number and sizes[number] != sizes[number - 1]:
            yield Resize(passed, sizes[number])
        passed += piece.end - piece.begin


def _suspensions(claim: Claim, begin: float) -> int:
    times = [at for state, at in claim.timeline if state == ClaimState.SUSPENDED]
    return sum(datetime.fromisoformat(at).timestamp() >= begin for at in times)


def _spans(keys: Sequence[int], end: float) -> dict[int, list[tuple[float, float]]]:
    """Return the times on GPUs by claim, merged; nothing is written to an assignment after its release."""
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    rows = Assignment.objects.filter(claim__in=keys).order_by("claim_id", "created_at", "pk")
    for key, begun, state, changed in rows.values_list("claim_id", "created_at", "state", "updated_at"):
        first = begun.timestamp()
        last = min(changed.timestamp(), end) if state == AssignmentState.RELEASED else end
        known = spans[key]
        if known and first <= known[-1][1]:
            known[-1] = known[-1][0], max(last, known[-1][1])
        elif first < last:
            known.append((first, last))
    return spans


def _charges(uids: Sequence[UUID], end: datetime) -> dict[UUID | None, list[_Charge]]:
    found: dict[UUID | None, list[_Charge]] = defaultdict(list)
    rows = LedgerEntry.objects.filter(claim_uid__in=uids, resource__in=CHARGES, at__lt=end).order_by("pk")
    for uid, at, pool, resource, amount in rows.values_list("claim_uid", "at", "pool_id", "resource", "amount"):
        found[uid].append(_Charge(at.timestamp(), pool, resource, amount))
    for charges in found.values():
        charges.sort(key=lambda charge: charge.at)
    return found


def _without_broken_groups(claims: Iterable[PastClaim]) -> list[PastClaim]:
    """Return the claims; those of a group of which others are not there, or ran before, are placed one by one."""
    claims = list(claims)
    together = [claim for claim in claims if claim.entry.group is not None and not claim.ran_before]
    sizes = Counter((claim.entry.tenant, claim.entry.group, claim.entry.group_size) for claim in together)
    found = []
    for claim in claims:
        entry = claim.entry
        whole = not claim.ran_before and not sizes[entry.tenant, entry.group, entry.group_size] % entry.group_size
        found.append(claim if entry.group is None or whole else replace(claim, entry=replace(entry, group=None)))
    return found
