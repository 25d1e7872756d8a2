"""A scheduler's cache of one pool: GPUs, waiting claims, and remembered refusals.

It is read once and then updated from notices: each row that a notice names is read again, so a notice that comes twice
or late does no harm. A refusal is remembered until something that could change the answer was freed, so a long queue
costs little.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.nodes.models import Node
from apps.nodes.models.node import FRESH
from apps.quotas.models import Pool, Tenant
from apps.scheduling.core.backfill import BlockedHead
from apps.scheduling.core.calendar import Room
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, NodeState, Placed, Refused, Request
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.cycles.expected_releases import ending
from apps.scheduling.services.cycles.notices import Notices
from apps.scheduling.services.cycles.records import Journal, value_as_json
from apps.scheduling.services.cycles.rewriting import OVER_QUOTA, Rewriting
from apps.scheduling.services.cycles.waiting_claims import Group, Kind, WaitingClaim, asks, group_of, learned_mix
from apps.scheduling.services.failures import Backoff, set_aside_refusal
from apps.scheduling.services.fleet.devices import Device, read_devices, read_nodes
from apps.scheduling.services.fleet.reserved import Terms, read_reserved

# The mix of typical requests is learned from this many claims at the start, and from each arrival afterwards.
MIX_OF = 2000
# The first and the longest pause of a claim over which the core raised.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 30.0, 3600.0
NONE: set[int] = set()


class PoolCache:
    """One pool in memory, for the scheduler that leads it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.devices: dict[str, Device] = {}
        self._uuids: dict[int, str] = {}
        self._on_node: dict[int, set[str]] = defaultdict(set)
        self._learned_to = 0
        self.policy = pool.placement_policy
        self._machines = {node.name: node for node in read_nodes(pool)}
        self.fleet = Fleet((), self._machines.values(), policy=self.policy)
        self.journal = Journal(self.fleet, policy=self.policy, mix=[])
        self.waiting: dict[int, WaitingClaim] = {}
        self._by_kind: dict[Kind, set[int]] = defaultdict(set)
        # Keys of the claims that borrow core if there is no room of their own.
        self.best_effort: set[int] = set()
        # The position at which the last placement on lent core stopped; None: it reached the end of the queue.
        self.lent_to: tuple[int, int] | None = None
        # Keys of the claims that no round has answered yet.
        self._unanswered: set[int] = set()
        self._no_room: dict[tuple[Request, Terms | None], Refused] = {}
        self._over_quota: dict[Kind, Refused] = {}
        # Claims by group, and refusals of whole groups; and the start times of claims that start later.
        self._groups: dict[Group, set[int]] = defaultdict(set)
        self._no_group: dict[Group, Refused] = {}
        self._early: dict[int, float] = {}
        # Refusals of claims over which the core raised, and the times until which they stand.
        self._failed: dict[Hashable, tuple[Refused, float]] = {}
        self._pauses = Backoff(first_seconds=FIRST_PAUSE_SECONDS, most_seconds=LAST_PAUSE_SECONDS)
        self.blocked_head = BlockedHead(partial(ending, pool))
        self._spent: dict[int, Refused] = {}
        self.rewriting = Rewriting()
        self.reserved = read_reserved(pool, now=timezone.now())
        self._keep_devices((), read_devices(pool))
        self._keep_claims(Q())
        self.begin_record()

    def begin_record(self) -> None:
        """Begin another recorded snapshot, with a fleet that knows no more than the snapshot says."""
        self.fleet, self.journal = self._begin(self.fleet.gpus(), self.fleet.nodes())

    def _begin(self, gpus: Iterable[GpuState], nodes: Iterable[NodeState] = ()) -> tuple[Fleet, Journal]:
        recent = list(Claim.objects.filter(pool=self.pool).order_by("-pk")[:MIX_OF])
        mix = learned_mix(recent)
        self._learned_to = max((claim.pk for claim in recent), default=0)
        fleet = Fleet(gpus, nodes, policy=self.policy, mix=mix)
        return fleet, Journal(fleet, policy=self.policy, mix=mix)

    def candidates(self, *, now: float) -> list[WaitingClaim]:
        """Return the claims that may fit, as far as is known, and those that no round has answered yet; in no order.

        A group is returned as a whole or not at all. `now` is in Unix seconds: claims with a start time are returned
        from then on.
        """
        for key in [key for key, at in self._early.items() if at <= now]:
            self._keep_waiting(self.waiting[key], early=None)
        self._failed = {key: kept for key, kept in self._failed.items() if kept[1] > now}
        keys = set[int]()
        for kind, members in self._by_kind.items():
            if self.find_refusal(kind) is None:
                keys |= members
        keys = keys - self.blocked_head.held_back_keys() | self._unanswered
        for group, members in self._groups.items():
            if self._failed and self._as_group(members) in self._failed:
                keys -= members
            elif group not in self._no_group or members & keys:
                keys |= members
        return [self.waiting[key] for key in keys]

    def refresh_reservations(self) -> None:
        """Read the pool's reservations.

        Whether there are any decides which claims are alike, so claims are read again then.
        """
        before, self.reserved = self.reserved, read_reserved(self.pool, now=timezone.now())
        if bool(before.holds) != bool(self.reserved.holds):
            self.refresh_claims(set(self.waiting))

    def withheld_from(self, claim: Claim) -> Mapping[str, Room]:
        """Return the room that is withheld from the claim, by GPU uuid: (core, memory_mib)."""
        return self.reserved.withheld_from(claim, lambda: (device.state for device in self.devices.values()))

    def has_due_claims(self, *, now: float) -> bool:
        """Return True if a claim's start time or pause has passed, or reasons are to be rewritten."""
        failed = (until for _, until in self._failed.values())
        return self.rewriting.is_due or any(at <= now for at in (*self._early.values(), *failed))

    def find_first_refused(self) -> WaitingClaim | None:
        """Return the most urgent, then oldest, single claim for which there is no room; None if there is none."""
        no_room = self._no_room.keys() - self._failed.keys()
        kinds = [keys for kind, keys in self._by_kind.items() if (kind.request, kind.terms) in no_room]
        waiting = [self.waiting[key] for keys in kinds for key in keys]
        # A claim in a reservation waits for room there.
        alone = [item for item in waiting if item.claim.reservation_id is None]
        return min(alone, key=lambda item: (-item.claim.priority, item.claim.pk), default=None)

    # Refusals

    def find_refusal(self, kind: Kind) -> Refused | None:
        """Return the remembered refusal of this kind of claim, None if it may have become wrong."""
        if (failed := self._failed.get((kind.request, kind.terms))) is not None:
            return failed[0]
        return (
            self._no_room.get((kind.request, kind.terms))
            or self._spent.get(kind.tenant_id)
            or (None if kind.charged else self._over_quota.get(kind))
        )

    def remember_refusal(self, kind: Kind, why: Refused) -> None:
        """Refuse claims of this kind until something that could change the answer was freed."""
        code = why.reasons[0].code
        if code == "budget-exceeded":
            self._spent[kind.tenant_id] = why
        elif code in OVER_QUOTA:
            self._over_quota[kind] = why
        else:
            self._no_room[kind.request, kind.terms] = why

    def remember_group_refusal(self, group: Group, why: Refused) -> None:
        """Refuse the group until something was freed, or one of its claims comes or goes."""
        self._no_group[group] = why

    def set_aside(self, members: Sequence[WaitingClaim], *, now: float) -> tuple[Refused, list[WaitingClaim]]:
        """Set aside claims over which something raised, and all claims alike; return the refusal, and those claims.

        A group is asked again also if another claim of it comes, or one goes or changes its request.
        """
        if (group := group_of(members[0].claim)) is not None:
            alike = [self.waiting[key] for key in self._groups[group]]
            key: Hashable = self._as_group(self._groups[group])
        else:
            key = (members[0].kind.request, members[0].kind.terms)
            found = (keys for kind, keys in self._by_kind.items() if (kind.request, kind.terms) == key)
            alike = [self.waiting[one] for keys in found for one in keys]
        until = self._pauses.record_failure(key, now=now)
        self._failed[key] = why, _ = set_aside_refusal(until), until
        return why, alike

    def _as_group(self, members: Iterable[int]) -> Hashable:
        return frozenset((key, self.waiting[key].request) for key in members)

    def repair_fleet(self) -> None:
        """Rebuild the fleet, which may be half changed, from the cached devices.

        The caller must then call `begin_record`.
        """
        states = [device.state for device in self.devices.values()]
        self.fleet = Fleet(states, self._machines.values(), policy=self.policy)

    def forget_refusals(self) -> None:
        """Forget all refusals but those over quota: those end with a notice of the quota."""
        self._forget_placement()
        self.blocked_head.invalidate()
        self._spent.clear()

    def _forget_placement(self) -> None:
        self._no_room.clear()
        self._no_group.clear()
        self.rewriting.request()

    def refused_claims(self) -> Iterator[tuple[WaitingClaim, Refused]]:
        """Yield the single claims whose refusal is remembered, with it, those of a kind together."""
        for kind, keys in self._by_kind.items():
            if (why := self.find_refusal(kind)) is not None:
                yield from ((self.waiting[key], why) for key in keys)

    def mark_answered(self, key: int) -> None:
        """Record that a round has answered this claim."""
        self._unanswered.discard(key)

    # Changes by rounds

    def take(self, answer: Placed, request: Request) -> None:
        """Record that the request is placed as answered."""
        self.fleet.take(answer.gpus, request, node=answer.node)
        for uuid in answer.gpus:
            self.devices[uuid] = self.devices[uuid].carrying(request)

    def remove_claim(self, key: int, *, requeued: bool = False) -> None:
        """Remove the claim from the queue; `requeued`: it is added again at once, as it is then."""
        self._unanswered.discard(key)
        self.best_effort.discard(key)
        self._early.pop(key, None)
        if waiting := self.waiting.pop(key, None):
            self.blocked_head.remove_claim(key, str(waiting.claim.uid), requeued=requeued)
            if self.blocked_head.head is None:
                # What was withheld for the head may be a group's now.
                self._no_group.clear()
            if group := group_of(waiting.claim):
                self._groups[group].discard(key)
                self._no_group.pop(group, None)
            self._by_kind[waiting.kind].discard(key)
            if not self._by_kind[waiting.kind]:
                del self._by_kind[waiting.kind]

    # Changes by others

    def apply(self, notices: Notices) -> None:
        """Read again what the notices name, and forget the refusals that this may change."""
        named = {kind: {int(key) for key in notices.get(kind, ())} for kind in ("gpu", "node", "claim", "tenant")}
        if named["gpu"] or named["node"]:
            self.refresh_devices(gpus=named["gpu"], nodes=named["node"])
        if named["claim"]:
            self.refresh_claims(named["claim"])
        if cohorts := notices.get("cohort"):
            named["tenant"].update(Tenant.objects.filter(cohort__in=cohorts).values_list("pk", flat=True))
        for kind in [kind for kind in self._over_quota if kind.tenant_id in named["tenant"]]:
            del self._over_quota[kind]
        for tenant_id in named["tenant"]:
            self._spent.pop(tenant_id, None)
        if named["tenant"]:
            self._no_group.clear()
            self.rewriting.request()
        if str(self.pool.pk) in notices.get("pool", ()):
            self._follow_pool()

    def _follow_pool(self) -> None:
        """Read the pool; begin another record if its policy has changed, read all again if its sharing groups have."""
        before, self.pool = self.pool, Pool.objects.filter(pk=self.pool.pk).first() or self.pool
        self.forget_refusals()
        if self.policy != self.pool.placement_policy:
            self.policy = self.pool.placement_policy
            self.begin_record()
        if (before.backend, before.mps_group) != (self.pool.backend, self.pool.mps_group):
            self._keep_devices(list(self.devices.values()), read_devices(self.pool))
            self.refresh_claims(set(self.waiting))

    def refresh_devices(self, *, gpus: set[int] = NONE, nodes: set[int] = NONE) -> int:
        """Read these GPUs, and all GPUs of these nodes, again; return how many of them differ from the cache."""
        for node in read_nodes(self.pool, Q(pk__in=nodes)) if nodes else ():
            self._keep_node(node)
        uuids = {self._uuids[key] for key in gpus & self._uuids.keys()}
        uuids.update(*(self._on_node[key] for key in nodes & self._on_node.keys()))
        which = Q(pk__in=gpus) | Q(node__in=nodes) if gpus and nodes else Q(pk__in=gpus) if gpus else Q(node__in=nodes)
        return self._keep_devices([self.devices[uuid] for uuid in uuids], read_devices(self.pool, which))

    def refresh_claims(self, keys: set[int]) -> None:
        """Read these claims again; remove those of other pools, and those that no longer wait."""
        before = {key: self.waiting[key] for key in keys & self.waiting.keys()}
        for key in keys:
            self.remove_claim(key, requeued=True)
        self._keep_claims(Q(pk__in=keys))
        for key, waiting in before.items():
            now = self.waiting.get(key)
            if now is None or now.request != waiting.request:
                self.blocked_head.remove_claim(key, str(waiting.claim.uid))

    def refresh_silent_nodes(self) -> int:
        """Read nodes again that fell silent or came back; return how many GPUs differed from the cache.

        Silence sends no notice. A node that comes back sends one; but its last sign of life may be by another machine's
        clock.
        """
        kept = {key: any(self.devices[uuid].state.takes_claims for uuid in on) for key, on in self._on_node.items()}
        since, nodes = timezone.now() - FRESH, Node.objects.filter(pool=self.pool)
        silent = set(nodes.filter(last_seen_at__lt=since).values_list("pk", flat=True))
        passed_over = [key for key, ready in kept.items() if not ready]
        back = nodes.filter(
            pk__in=passed_over,
            last_seen_at__gte=since,
            cordoned=False,
            unhealthy="",
            fenced_at=None,
            returning_frame=None,
        ).values_list("pk", flat=True)
        news = {key for key in silent if kept.get(key)} | set(back)
        return self.refresh_devices(nodes=news) if news else 0

    @property
    def node_ids(self) -> set[int]:
        """Keys of the nodes that have a cached GPU."""
        return {key for key, on in self._on_node.items() if on}

    def _keep_devices(self, known: Iterable[Device], found: Iterable[Device]) -> int:
        gone, differed = {device.state.uuid: device for device in known}, 0
        for device in found:
            if gone.pop(device.state.uuid, None) != device:
                self._keep(device)
                differed += 1
        for device in gone.values():
            self._drop(device)
        return differed + len(gone)

    def _keep(self, device: Device) -> None:
        uuid = device.state.uuid
        if (before := self.devices.get(uuid)) is not None:
            self._on_node[before.node_id].discard(uuid)
        self.devices[uuid] = device
        self._uuids[device.pk] = uuid
        self._on_node[device.node_id].add(uuid)
        self.fleet.set_gpu(device.state)
        self.journal.record_change({"gpu": value_as_json(device.state)})
        self._may_help(device.state)
        if before is None or _structure(before.state) != _structure(device.state):
            self._forget_placement()

    def _keep_node(self, node: NodeState) -> None:
        if self._machines.get(node.name) == node:
            return
        self._machines[node.name] = node
        self.fleet.set_node(node)
        self.journal.record_change({"machine": value_as_json(node)})
        for key in [key for key in self._no_room if key[0].node_selector]:
            del self._no_room[key]
        self.rewriting.request()

    def _drop(self, device: Device) -> None:
        uuid = device.state.uuid
        del self.devices[uuid], self._uuids[device.pk]
        self._on_node[device.node_id].discard(uuid)
        self.fleet.remove_gpu(uuid)
        self.journal.record_change({"gone": uuid})
        self._may_help(replace(device.state, schedulable=False, mig=None))
        self._forget_placement()

    def _may_help(self, gpu: GpuState) -> None:
        self.blocked_head.record_change(gpu)
        self._no_group.clear()
        for key in [key for key in self._no_room if gpu.could_help(key[0])]:
            del self._no_room[key]

    def _keep_waiting(self, waiting: WaitingClaim, *, early: datetime | None) -> None:
        claim = waiting.claim
        self.waiting[claim.pk] = waiting
        self._early.pop(claim.pk, None)
        if early is not None and early > timezone.now():
            self._early[claim.pk] = early.timestamp()
        if group := group_of(claim):
            self._groups[group].add(claim.pk)
            self._no_group.pop(group, None)
        elif claim.pk not in self._early:
            self._by_kind[waiting.kind].add(claim.pk)

    def _queue(self, which: Q) -> QuerySet[Claim]:
        return Claim.objects.in_queue().filter(which, pool=self.pool).select_related("reservation")

    def _keep_claims(self, which: Q) -> None:
        for claim in self._queue(which).order_by("pk"):
            charged = claim.charged_vgpus > 0
            terms = self.reserved.terms(claim)
            kind = Kind(asks(claim, self.pool), claim.tenant_id, None if charged else claim.user_id, charged, terms)
            self._keep_waiting(WaitingClaim(claim, kind), early=claim.start_at)
            if claim.best_effort and claim.state != ClaimState.RESUMING:
                self.best_effort.add(claim.pk)
            if claim.state == ClaimState.PENDING:
                self._unanswered.add(claim.pk)
            if claim.pk > self._learned_to:
                self._learned_to = claim.pk
                self.fleet.learn(kind.request)
                self.journal.record_arrival(kind.request)


def _structure(gpu: GpuState) -> tuple[object, ...]:
    return gpu.schedulable, gpu.unhealthy, gpu.model, gpu.memory_mib, gpu.node, gpu.mig and gpu.mig._replace(used=0)
