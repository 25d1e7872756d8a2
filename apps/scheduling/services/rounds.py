"""A round: one pass over a pool's queue. The core decides; here its decisions are committed or dropped.

Each placement is one transaction that takes the GPUs under the condition that they still have the room the round saw,
so a round that worked on an old picture loses the race instead of promising a GPU twice.
"""

import time
from dataclasses import asdict, replace
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.models import Pool
from apps.quotas.services.charging import QuotaExceeded
from apps.scheduling import events
from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, Placed, Reason, Refused, Request
from apps.scheduling.models import Assignment, Claim, ClaimState, Round
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services import states
from apps.scheduling.services.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.claims import limits, raise_frames, request_of
from apps.scheduling.services.fleet import read_fleet

# The picture of the fleet is read anew so often: what was freed meanwhile counts for the rest of the queue.
BATCH = 500


class LostRace(Exception):
    """A GPU or the claim is no longer as the round saw it."""


def run_round(pool: Pool) -> Round | None:
    """Try every waiting claim of the pool once, highest priority first, then oldest; the last record made.

    A long queue is tried in batches, each recorded where it changed something, so that claims that fit are found behind
    any number that do not. None where nothing changed.
    """
    done, last = None, None
    while queue := _next_batch(pool, last):
        done = _try(pool, queue) or done
        last = queue[-1]
    return done


def _next_batch(pool: Pool, last: Claim | None) -> list[Claim]:
    waiting = Claim.objects.filter(pool=pool, state__in=WAITING).select_related("tenant", "pool")
    if last is not None:
        waiting = waiting.filter(Q(priority__lt=last.priority) | Q(priority=last.priority, pk__gt=last.pk))
    return list(waiting.order_by("-priority", "pk")[:BATCH])


def _try(pool: Pool, queue: list[Claim]) -> Round | None:
    """Decide these claims in order, and record it where anything changed."""
    started = time.perf_counter()
    seen = read_fleet(pool)
    fleet, decisions, changed = {gpu.uuid: gpu for gpu in seen}, [], False
    spent: dict[int, Refused] = {}
    for claim in queue:
        answer = _decide(claim, fleet, spent)
        if isinstance(answer, Placed):
            fleet = taken(fleet, answer, request_of(claim))
            changed = True
        else:
            changed |= _refuse(claim, answer)
        decisions.append(_told(claim, answer))
    if not changed:
        return None
    return Round.objects.create(
        pool=pool,
        duration_us=int((time.perf_counter() - started) * 1e6),
        considered=len(queue),
        placed=sum("gpus" in decision for decision in decisions),
        fleet=[asdict(gpu) for gpu in seen],
        queue=[{"claim": str(claim.uid), **asdict(request_of(claim))} for claim in queue],
        decisions=decisions,
    )


def _decide(claim: Claim, fleet: dict[str, GpuState], spent: dict[int, Refused]) -> Placed | Refused:
    """`spent` remembers by tenant whose budget is: a long queue must not count it again for each of its claims."""
    answer = place(fleet.values(), request_of(claim))
    if isinstance(answer, Placed) and claim.tenant_id in spent:
        return spent[claim.tenant_id]
    if isinstance(answer, Placed):
        try:
            _commit(claim, answer)
        except BudgetExceeded as error:
            spent[claim.tenant_id] = Refused((Reason(error.code, 0, error.detail),))
            return spent[claim.tenant_id]
        except QuotaExceeded as error:
            return Refused((Reason(error.code, 0, error.detail),))
        except LostRace:
            events.wake_scheduler(claim.pool)
            detail = "The GPU changed while it was being chosen; the next round tries again"
            return Refused((Reason("changed-meanwhile", len(answer.gpus), detail),))
    return answer


@transaction.atomic
def _commit(seen: Claim, answer: Placed) -> None:
    claim = Claim.objects.select_for_update(of=("self",)).select_related("tenant", "pool").get(pk=seen.pk)
    if claim.version != seen.version:
        raise LostRace
    # What was in the queue when the budget was spent reserves nothing before.
    refuse_spent(claim.tenant)
    if not any(claim.charged.values()):
        states.charge_to(
            claim, states.amounts(gpu_count=claim.gpu_count, core=claim.core_request, memory_mib=claim.memory_mib)
        )
    gpus = list(Gpu.objects.filter(uuid__in=answer.gpus).order_by("pk"))
    for gpu in gpus:
        if not capacity.take(gpu_id=gpu.pk, core=claim.core_request, memory_mib=claim.memory_mib):
            raise LostRace
        Assignment.objects.create(
            claim=claim,
            gpu=gpu,
            **limits(claim),
            held_core=claim.core_request,
            held_memory_mib=claim.memory_mib,
            generation=claim.generation,
        )
    states.move(claim, ClaimState.ASSIGNED, reasons=[], assigned_at=timezone.now())
    node_ids = {gpu.node_id for gpu in gpus}
    raise_frames(node_ids)
    # Their rows are locked now: a node that was moved or cordoned meanwhile carries nothing new.
    nodes = Node.objects.filter(pk__in=node_ids)
    if any(node.pool_id != claim.pool_id or node.state != "ready" for node in nodes):
        raise LostRace


@transaction.atomic
def _refuse(seen: Claim, answer: Refused) -> bool:
    """Write why; True where it is news."""
    reasons = [asdict(reason) for reason in answer.reasons]
    claim = Claim.objects.select_for_update(of=("self",)).get(pk=seen.pk)
    if claim.version != seen.version or (claim.state == ClaimState.QUEUED and claim.reasons == reasons):
        return False
    states.move(claim, ClaimState.QUEUED, reasons=reasons)
    return True


def taken(fleet: dict[str, GpuState], answer: Placed, request: Request) -> dict[str, GpuState]:
    """The fleet as it is once the request is placed."""

    def after(gpu: GpuState) -> GpuState:
        return replace(
            gpu,
            core_free=gpu.core_free - request.core_request,
            memory_free_mib=gpu.memory_free_mib - request.memory_mib,
        )

    return {**fleet, **{uuid: after(fleet[uuid]) for uuid in answer.gpus}}


def _told(claim: Claim, answer: Placed | Refused) -> dict[str, Any]:
    if isinstance(answer, Placed):
        return {"claim": str(claim.uid), "gpus": list(answer.gpus)}
    return {"claim": str(claim.uid), "reasons": [asdict(reason) for reason in answer.reasons]}
