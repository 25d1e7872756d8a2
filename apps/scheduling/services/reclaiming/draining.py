"""Draining of nodes: a draining node takes no new claims; those on it get notice, a grace, and go back to the queue.

Level-triggered, as preemption is: the node has a flag, and each run gives notice to the claims without one and ends
those whose time has come, each claim in a transaction that checks it again under its lock. A node that is uncordoned no
longer drains; a claim that got notice and still runs is spared by the next run of preemption.

Members of a group go together, wherever they are: one alone would never be placed again. Claims of pods stay: a pod is
moved by its cluster. Suspended claims stay, too: what they had is in the node's memory, and they hold no GPU.

A drain may suspend claims instead (`DrainMode`); they resume by themselves on an uncordoned node. Or it moves those
that may move to other nodes, and suspends the others. What can be neither moved nor suspended is queued again.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import DrainMode
from apps.quotas.models import EventKind, Webhook
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import Placed
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState, Reservation
from apps.scheduling.models.claim import PLACED, PUT_ASIDE
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.models.reservation import OPEN
from apps.scheduling.providers import move_orders
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import end_assignments, locked, request_of
from apps.scheduling.services.claims.suspending import find_obstacles, find_refusal, resume, try_suspend
from apps.scheduling.services.claims.suspension_reports import MOVE_REFUSED
from apps.scheduling.services.failures import each
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import read_reserved
from gpucloud.api import etags
from gpucloud.errors import Conflict

# The grace if the pool has none of its own, as it never preempts.
GRACE_SECONDS = 30
WHY = "Its node is being drained"


def grace_of(node: Node, asked: int | None = None) -> int:
    """Return the seconds between notice and end of claims on the node: as asked, else the pool's."""
    given = asked if asked is not None else node.pool.preemption_grace_seconds
    return GRACE_SECONDS if given is None else given


@transaction.atomic
def drain_node(
    *,
    principal: Principal,
    node: Node,
    grace_seconds: int | None = None,
    mode: str = DrainMode.REQUEUE,
    versions: etags.Versions = None,
) -> Node:
    """Cordon the node and have its claims leave; without a grace, by their pool's. Raises PreconditionFailed."""
    principal.require_operator()
    node = etags.lock(node, versions, "pool")
    begun = node.draining_at or timezone.now()
    node.change(cordoned=True, draining_at=begun, drain_grace_seconds=grace_seconds, drain_mode=mode)
    audit.record(principal, "node.drain", node, after={"grace_seconds": grace_of(node, grace_seconds), "mode": mode})
    return node


def leaving(nodes: QuerySet[Node]) -> QuerySet[Claim]:
    """Return the claims that must go for these nodes to be empty, with the rest of their groups."""
    # One that has moved to another node is still released here.
    live = Assignment.objects.live().filter(gpu__node__in=nodes).exclude(state=AssignmentState.RELEASING)
    here = Claim.objects.filter(state__in=PLACED, pod__isnull=True, pk__in=live.values("claim"))
    group = here.filter(group__isnull=False, tenant=OuterRef("tenant"), pool=OuterRef("pool"), group=OuterRef("group"))
    with_group = Q(pk__in=here.values("pk")) | (Q(group__isnull=False) & Q(Exists(group)))
    return Claim.objects.filter(with_group, state__in=PLACED, pod__isnull=True)


def drive() -> int:
    """Give notice to claims without one, and end those whose time has come; return the number changed.

    May run twice.
    """
    changed = _resume_claims()
    for node in Node.objects.filter(draining_at__isnull=False).select_related("pool").order_by("pk"):
        claims = list(leaving(Node.objects.filter(pk=node.pk)).select_related("pool").order_by("pk"))
        ends = _find_ends(claims, node) if any(claim.preempt_at is None for claim in claims) else {}
        changed += each(claims, partial(_advance, node, ends))
    return changed


def _resume_claims() -> int:
    """Let claims that a drain has suspended wait for their GPUs once their node is no longer cordoned."""
    cordoned = Assignment.objects.live().filter(gpu__node__cordoned=True)
    by_drain = Claim.objects.filter(state=ClaimState.SUSPENDED, suspended_by=SuspendedBy.DRAIN)
    waiting = by_drain.exclude(pk__in=cordoned.values("claim")).order_by("pk")
    return each(waiting, partial(resume, by=SuspendedBy.DRAIN))


def _advance(node: Node, ends: Mapping[int, tuple[str, str]], claim: Claim) -> bool:
    if claim.preempt_at is not None:
        return _end(claim, node)
    return _tell(claim, node, *ends[claim.pk])


@transaction.atomic
def _tell(seen: Claim, node: Node, action: str, then: str) -> bool:
    claim, grace = _must_go(seen, node), grace_of(node, node.drain_grace_seconds)
    if claim is None or claim.preempt_at is not None:
        return False
    preempt_at = timezone.now() + timedelta(seconds=grace)
    facts = {"at": preempt_at, "grace_seconds": grace, "action": action}
    states.note(claim, "notice", why=WHY, node=node.name, preempt_at=preempt_at.isoformat())
    states.tell_of(claim, EventKind.CLAIM_PREEMPTION_NOTICE, why=WHY, **facts)
    detail = f"{WHY}: at {preempt_at:%Y-%m-%d %H:%M:%S} UTC {then}"
    states.move(claim, claim.state, preempt_at=preempt_at, reasons=[{"code": "drained", "gpus": 0, "detail": detail}])
    return True


def _find_ends(claims: Sequence[Claim], node: Node) -> dict[int, tuple[str, str]]:
    """Return by key what ends each claim's stay if all go in this order, and that in words.

    It is `move`, `suspend` or `requeue`.
    """
    if node.drain_mode == DrainMode.REQUEUE:
        return {claim.pk: ("requeue", "it goes back to the queue") for claim in claims}
    stay = _stay(claims) if node.drain_mode == DrainMode.MOVE else {claim.pk: "" for claim in claims}
    ends = {claim.pk: ("move", _describe_move(claim)) for claim in claims if claim.pk not in stay}
    obstacles = find_obstacles([claim for claim in claims if claim.pk in stay])
    for key, why in stay.items():
        not_moved = f" It cannot move: {why}" if why else ""
        if key in obstacles:
            ends[key] = "requeue", f"it goes back to the queue, as it cannot be suspended. {obstacles[key]}{not_moved}"
        else:
            ends[key] = "suspend", f"it is suspended until the node takes claims again.{not_moved}"
    return ends


def _describe_move(claim: Claim) -> str:
    ends = "its programs save their state, end, and may start again on another node"
    if not move_orders.get().may_carry(claim):
        return ends
    return f"its running programs are carried to another node; if they cannot be, {ends}"


def _stay(claims: Sequence[Claim]) -> dict[int, str]:
    """Return by key why these cannot move to other nodes; those that may, if one has room, are left out."""
    found = {
        claim.pk: find_refusal(claim, MOVE_REFUSED) or move_orders.get().find_move_obstacle(claim) for claim in claims
    }
    return {key: why for key, why in found.items() if why is not None}


def _try_move(claim: Claim) -> str | None:
    """Order the move of the locked claim to another node; return why that is refused, None once it is ordered."""
    if refusal := find_refusal(claim, MOVE_REFUSED):
        return refusal
    orders, why = move_orders.get(), None
    # Running programs are carried if they can be, once.
    for restart in (False, True) if orders.may_carry(claim) else (True,):
        try:
            # What was charged before the refusal is undone.
            with transaction.atomic():
                orders.move_claim_to_node(principal=SYSTEM, claim=claim, restart=restart)
            return None
        except Conflict as error:
            why = error.detail
    return why


@transaction.atomic
def _end(seen: Claim, node: Node) -> bool:
    claim = _must_go(seen, node)
    if claim is None or claim.preempt_at is None or claim.preempt_at > timezone.now():
        return False
    detail = f"{WHY}: the claim is queued again"
    if node.drain_mode == DrainMode.MOVE and _try_move(claim) is None:
        # Its notice stays until it has left: if its nodes refuse, the next run goes on from here.
        return True
    if node.drain_mode != DrainMode.REQUEUE:
        refusal = try_suspend(claim, by=SuspendedBy.DRAIN, why=WHY)
        if refusal is None:
            return True
        detail += f", as it could not be suspended. {refusal}"
    states.note(claim, "preempt", why=WHY, node=node.name, state=claim.state)
    states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=WHY)
    return end_assignments(claim, reasons=[{"code": "drained", "gpus": 0, "detail": detail}])


def _must_go(seen: Claim, node: Node) -> Claim | None:
    """Return the claim under its lock if the node still drains and the claim is still placed; else None."""
    claim = locked(seen)
    drains = Node.objects.filter(pk=node.pk, draining_at__isnull=False).exists()
    return claim if drains and claim.state in PLACED else None


class Progress(NamedTuple):
    """The progress of a drain: claims that have left the node's GPUs since its beginning, and all that were to leave.

    A suspended claim has left: it is on the node, and holds none of its GPUs.
    """

    left: int
    claims: int

    def __str__(self) -> str:
        return f"{self.left}/{self.claims}"


def attach_progress(nodes: Iterable[Node]) -> None:
    """Set `drain_progress` of the nodes that drain; one query, and none if no node drains."""
    draining = {node.pk: node for node in nodes if node.draining_at is not None}
    if not draining:
        return
    live = ~Q(state__in=(AssignmentState.RELEASED, AssignmentState.SUSPENDED))
    here = Assignment.objects.filter(live | Q(updated_at__gte=F("gpu__node__draining_at")), gpu__node__in=draining)
    claims = here.filter(claim__pod__isnull=True).order_by().values_list("gpu__node", "claim")
    found: dict[int, list[bool]] = {pk: [] for pk in draining}
    for node, _claim, stays in claims.annotate(stays=Count("pk", filter=live)):
        found[node].append(not stays)
    for pk, gone in found.items():
        draining[pk].drain_progress = Progress(sum(gone), len(gone))


def plan(node: Node, *, grace_seconds: int | None = None, mode: str = DrainMode.REQUEUE) -> dict[str, Any]:
    """Return what draining the node would do now: claims that go and their new places, claims that stay, and notices.

    `suspends`: claims that would be suspended. One that is queued again in spite of `mode` has the obstacle as
    `cannot_suspend`; one that would move has `carries` if its running programs are carried, else `restarts`.

    Places are searched in the queue's order on the pool as it is, after its reservations; the rounds that place the
    claims decide anew.
    """
    now = timezone.now()
    claims = list(
        leaving(Node.objects.filter(pk=node.pk)).select_related("tenant", "pool").order_by("-priority", "created_at")
    )
    live = Assignment.objects.filter(gpu__node=node).live()
    kind = Q(pod__isnull=False) | Q(state__in=PUT_ASIDE)
    staying = Claim.objects.filter(kind, pk__in=live.values("claim")).select_related("tenant").order_by("pk")
    stay = _stay(claims) if mode == DrainMode.MOVE else {claim.pk: "" for claim in claims}
    leaving_moves = _moves(node, [claim for claim in claims if claim.pk not in stay], now)
    leave = {move["claim"] for move in leaving_moves if move["to"] is not None}
    carries = {claim.uid: move_orders.get().may_carry(claim) for claim in claims if claim.uid in leave}
    left = [claim for claim in claims if claim.uid not in leave]
    suspends, obstacles = _divide(left) if mode != DrainMode.REQUEUE else ([], {})
    goes = [claim for claim in left if claim not in suspends]
    hooks = Webhook.objects.filter(Q(tenant__in={claim.tenant for claim in claims}) | Q(tenant=None), enabled=True)
    return {
        "node": node.name,
        "grace_seconds": grace_of(node, grace_seconds),
        "mode": mode,
        "moves": [
            *(_planned(move, carries=carries[move["claim"]]) for move in leaving_moves if move["claim"] in leave),
            *(_planned(move, cannot_suspend=obstacles.get(move["claim"])) for move in _moves(node, goes, now)),
        ],
        "suspends": [_named(claim) for claim in suspends],
        "stays": [{**_named(claim), "suspended": claim.state in PUT_ASIDE} for claim in staying],
        "webhooks_told": hooks.filter(events__contains=[EventKind.CLAIM_PREEMPTION_NOTICE]).count() if claims else 0,
        # They stay where they are booked, so their claims would wait for this node.
        "reservations": Reservation.objects.filter(state__in=OPEN, gpus__node=node).distinct().count(),
    }


def _planned(move: dict[str, Any], *, carries: bool | None = None, cannot_suspend: str | None = None) -> dict[str, Any]:
    """Return the move with its kind; `carries`: None if the claim is queued instead."""
    return {**move, "cannot_suspend": cannot_suspend, "carries": carries is True, "restarts": carries is False}


def _divide(claims: list[Claim]) -> tuple[list[Claim], dict[uuid.UUID, str]]:
    """Return the claims that can be suspended, all of them together, and why the others cannot, by uid."""
    obstacles = find_obstacles(claims)
    suspends = [claim for claim in claims if claim.pk not in obstacles]
    return suspends, {claim.uid: obstacles[claim.pk] for claim in claims if claim.pk in obstacles}


def _moves(node: Node, claims: list[Claim], now: datetime) -> list[dict[str, Any]]:
    if not claims:  # the whole pool would be read for nothing
        return []
    gpus = [state for state in read_fleet(node.pool) if state.node != node.name]
    elsewhere = [state for state in read_nodes(node.pool) if state.name != node.name]
    fleet, reserved = Fleet(gpus, elsewhere, policy=node.pool.placement_policy), read_reserved(node.pool, now=now)
    where, told = {state.uuid: state.node for state in gpus}, list[dict[str, Any]]()
    for claim in claims:
        request = request_of(claim)
        answer = fleet.place(request, held=reserved.withheld_from(claim, lambda: gpus))
        if isinstance(answer, Placed):
            fleet.take(answer.gpus, request)
            told.append({**_named(claim), "to": where[answer.gpus[0]], "reasons": []})
        else:
            told.append({**_named(claim), "to": None, "reasons": [asdict(reason) for reason in answer.reasons]})
    return told


def _named(claim: Claim) -> dict[str, Any]:
    names = ("gpu_count", "core_request", "memory_mib")
    facts = {name: getattr(claim, name) for name in names}
    return {"claim": claim.uid, "name": claim.name, "tenant": claim.tenant.slug, **facts}
