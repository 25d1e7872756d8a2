"""Commits of a round's decisions: many placements in one transaction, each made true or dropped.

Every row that a decision rests on is locked and checked again: the claim as the round saw it, room on the GPUs, nodes
that are ready. A placement that no longer holds is lost and decided anew; the rest is written in a few statements,
whatever their number. Claims that are still to be charged go in batches of one member's each: in the order of locks,
all quotas come before all GPUs, and all that one member is charged to is locked at once.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import F, Func, Value
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.nodes.services.back_ends import serves
from apps.quotas.models import Budget, Resource, Tenant
from apps.quotas.models.pool import MigInstances
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging, member_limits
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling import events
from apps.scheduling.core.values import Reason, Refused
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.claim import IN_QUEUE
from apps.scheduling.models.share import borrowable_mib
from apps.scheduling.services.charging import reservation_charges, states
from apps.scheduling.services.charging.budgets import BudgetExceeded, refuse_spent
from apps.scheduling.services.charging.reservation_charges import ReservationFull
from apps.scheduling.services.charging.shortages import reasons_of
from apps.scheduling.services.claims import isolation, lent_memory
from apps.scheduling.services.claims.lifecycle import all_limits, raise_frames
from apps.scheduling.services.cycles.records import reasons_as_json
from apps.scheduling.services.cycles.resuming import grant_resume, may_have
from apps.scheduling.services.failures import SESSION_LOST
from apps.scheduling.services.fleet.back_ends import follow_pools
from apps.scheduling.services.fleet.devices import mig_state, slices_used
from apps.scheduling.services.fleet.reserved import Guard

TIMELINE = ArrayField(ArrayField(models.CharField(max_length=40), size=2))


@dataclass(frozen=True, slots=True)
class Pick:
    """A claim as the round saw it, and the keys of the GPUs that the core chose."""

    claim: Claim
    gpus: tuple[int, ...]
    # The picks of one group are placed all or none.
    group: tuple[int, str, int] | None = None
    # The first memory slice of its MIG instance, where another scheduler chose it.
    start: int | None = None

    @property
    def charged(self) -> bool:
        """True if the claim is charged to its quotas already."""
        return self.claim.charged_vgpus > 0


@dataclass(slots=True)
class Outcome:
    """The picks by outcome: placed, refused by quota or budget, or lost because something had changed."""

    placed: list[Pick] = field(default_factory=list)
    refused: list[tuple[Pick, Refused]] = field(default_factory=list)
    lost: list[Pick] = field(default_factory=list)
    # Picks over which the commit itself raised, a group as a whole.
    failed: list[tuple[tuple[Pick, ...], Exception]] = field(default_factory=list)


class _Retry(Exception):
    """A claim was charged and then found no room: all is rolled back, and the rest is tried without it."""


def commit(picks: Sequence[Pick], *, fence: Callable[[], None]) -> Outcome:
    """Write the picks. `fence` raises, within each transaction, if the caller may no longer commit."""
    outcome = Outcome()
    alone = [pick for pick in picks if pick.group is None]
    groups: dict[tuple[int, str, int], list[Pick]] = defaultdict(list)
    for pick in picks:
        if pick.group is not None:
            groups[pick.group].append(pick)
    for batch in _batches(alone):
        _commit(batch, outcome, fence)
    for gang in groups.values():
        size = gang[0].claim.group_size or 1
        for first in range(0, len(gang), size):
            _commit(gang[first : first + size], outcome, fence)
    return outcome


def _batches(picks: Iterable[Pick]) -> Iterable[list[Pick]]:
    """Return the picks that are committed together: all that are charged already, and the rest by quotas and limits."""
    batches: dict[Hashable, list[Pick]] = {}
    for pick in picks:
        claim, key = pick.claim, None
        if not pick.charged:
            # Within a reservation each claim is counted against the room that those before it have left.
            key = (claim.tenant_id, claim.user_id, claim.reservation_id and claim.pk)
        batches.setdefault(key, []).append(pick)
    return batches.values()


def _commit(picks: Sequence[Pick], outcome: Outcome, fence: Callable[[], None]) -> None:
    """Write the picks that hold; if that raises, bisect for the claims that cause it, and write the others."""
    try:
        batch = _write(picks, fence)
    except SESSION_LOST:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is these claims' own and must not hold up the others
        if len(picks) == 1 or picks[0].group is not None:
            outcome.failed.append((tuple(picks), error))
            return
        middle = len(picks) // 2
        for half in (picks[:middle], picks[middle:]):
            _commit(half, outcome, fence)
        return
    outcome.placed += batch.placed
    outcome.refused += batch.refused
    outcome.lost += batch.lost


def _write(picks: Sequence[Pick], fence: Callable[[], None]) -> "_Transaction":
    """Write the picks in one transaction; roll back and repeat without those that were charged and then lost."""
    dropped: list[Pick] = []
    while True:
        batch = _Transaction(picks)
        try:
            with transaction.atomic():
                fence()
                batch.write()
        except (QuotaExceeded, ReservationFull) as error:
            # A group is placed all or none.
            batch.placed, batch.lost = [], []
            batch.refused = [(pick, refusal(error)) for pick in picks]
        except _Retry:
            dropped += batch.lost
            picks = [pick for pick in picks if pick not in batch.lost]
            continue
        batch.lost += dropped
        return batch


def refusal(error: QuotaExceeded | BudgetExceeded | ReservationFull) -> Refused:
    """Return the error as a refusal, with a reason for each resource that is short."""
    if isinstance(error, QuotaExceeded):
        return Refused(tuple(Reason(**reason) for reason in reasons_of(error)))
    return Refused((Reason(error.code, 0, error.detail),))


class _Transaction:
    """One transaction's picks. Locks are taken in the order of all: claims, quotas, GPUs, nodes."""

    def __init__(self, picks: Sequence[Pick]) -> None:
        self.placed: list[Pick] = []
        self.refused: list[tuple[Pick, Refused]] = []
        self.lost: list[Pick] = []
        self._picks = picks
        # The slices of the instances that are made, by claim and GPU.
        self._instances: dict[tuple[int, int], dict[str, int]] = {}

    def write(self) -> None:
        """Write every pick that still holds; a group all or none.

        Raises QuotaExceeded or ReservationFull for a group, and _Retry.
        """
        charged, candidates = self._charge(self._within_budget(self._unchanged(self._picks)))
        self._choose(candidates)
        if self._picks[0].group is not None and len(self.placed) < len(self._picks):
            self._drop_group()
            return
        if any(pick.claim.pk in charged for pick in self.lost):
            raise _Retry
        if not self.placed:
            transaction.set_rollback(bool(charged))
            return
        first = [pick for pick in self.placed if pick.claim.state != ClaimState.RESUMING]
        _write_assignments(first, self._instances)
        _write_claims(first)
        for pick in self.placed:
            if pick.claim.state == ClaimState.RESUMING:
                grant_resume(pick.claim, pick.gpus)
        raise_frames(self._node_ids)
        events.claims_changed_on_commit([pick.claim for pick in self.placed])

    def _charge(self, picks: Sequence[Pick]) -> tuple[set[int], list[Pick]]:
        """Charge the picks that are not charged; return the keys of those, and the picks that are charged now."""
        due = [pick for pick in picks if not pick.charged]
        if len(due) > 1:
            _lock_for_charges(due)
        kept = [pick for pick in picks if pick.charged]
        for pick in due:
            try:
                # Among several, one that exceeds the quota is rolled back by itself.
                with transaction.atomic() if len(due) > 1 else nullcontext():
                    _charge(pick)
            except (QuotaExceeded, ReservationFull) as error:
                if pick.group is not None:
                    raise
                self.refused.append((pick, refusal(error)))
            else:
                kept.append(pick)
        return {pick.claim.pk for pick in due}, kept

    def _drop_group(self) -> None:
        """Drop the whole group, as one of it cannot be placed."""
        transaction.set_rollback(True)
        if self.refused:
            _, why = self.refused[0]
            self.refused, self.lost = [(pick, why) for pick in self._picks], []
        else:
            self.lost = list(self._picks)
        self.placed = []

    def _unchanged(self, picks: Iterable[Pick]) -> list[Pick]:
        rows = Claim.objects.select_for_update(no_key=True).filter(pk__in=[pick.claim.pk for pick in picks])
        versions = dict(rows.order_by("pk").values_list("pk", "version"))
        same = self._keep(picks, lambda pick: versions.get(pick.claim.pk) == pick.claim.version)
        return self._keep(same, lambda pick: may_have(pick.claim, pick.gpus))

    def _within_budget(self, picks: Iterable[Pick]) -> list[Pick]:
        """Return the picks whose tenants have budget left; a budget may be spent since a claim was queued."""
        picks, spent = list(picks), {}
        tenants = {pick.claim.tenant_id for pick in picks}
        for tenant in Tenant.objects.filter(pk__in=Budget.objects.filter(tenant__in=tenants).values("tenant")):
            try:
                refuse_spent(tenant)
            except BudgetExceeded as error:
                spent[tenant.pk] = refusal(error)
        self.refused += [(pick, spent[pick.claim.tenant_id]) for pick in picks if pick.claim.tenant_id in spent]
        return [pick for pick in picks if pick.claim.tenant_id not in spent]

    def _choose(self, picks: Iterable[Pick]) -> None:
        """Lock GPUs and nodes, keep the picks for which there is room, in their order, and take that room."""
        gpus = _lock_gpus({key for pick in picks for key in pick.gpus})
        wanted = {gpu.node_id: gpu.node.pool.backend for gpu in gpus.values()}
        nodes = Node.objects.select_for_update(no_key=True).filter(pk__in=wanted).order_by("pk")
        ready = {node.pk: node.pool_id for node in nodes if node.state == "ready"}
        serving = {node.pk for node in nodes if serves(node, wanted[node.pk])}
        takes: dict[int, tuple[int, int]] = {}
        used = slices_used([gpu.pk for gpu in gpus.values() if gpu.mig is not None])
        guard, host = Guard(gpus, now=timezone.now()), lent_memory.HostRoom(nodes)

        def fits(pick: Pick) -> bool:
            claim = pick.claim
            more = {}
            for key in pick.gpus:
                core, memory = takes.get(key, (0, 0))
                more[key] = (core + claim.core_request, memory + claim.memory_mib)
                gpu = gpus.get(key)
                if gpu is None or gpu.state != "ready" or ready.get(gpu.node_id) != claim.pool_id:
                    return False
                # An instance is shared with nobody, by no back end.
                if claim.profile is None and gpu.node_id not in serving:
                    return False
                if more[key][0] > gpu.core_free or more[key][1] > gpu.memory_free_mib:
                    return False
            if not guard.admits(claim, pick.gpus) or not self._find_instance(pick, gpus, used):
                return False
            if not host.admits(claim, (gpus[key].node_id for key in pick.gpus)):
                return False
            takes.update(more)
            return True

        self.placed = self._keep(picks, fits)
        if takes and not capacity.take_many(takes):
            raise AssertionError("A locked GPU has changed.")
        host.take()
        # Programs that resume are used to the back end that they had.
        kept = {key for pick in self.placed if pick.claim.state == ClaimState.RESUMING for key in pick.gpus}
        follow_pools([gpus[key] for key in takes.keys() - kept])
        self._node_ids = {gpus[key].node_id for key in takes}

    def _find_instance(self, pick: Pick, gpus: Mapping[int, Gpu], used: dict[int, int]) -> bool:
        """Choose the place of the claim's instance on its locked GPU, and record it in `used`.

        Return False if there is none, or if the claim is not of the GPU's kind.
        """
        found = [gpus[key] for key in pick.gpus]
        if pick.claim.profile is None:
            return all(gpu.mig is None for gpu in found)
        for gpu in found:
            mig = mig_state(gpu.mig, used.get(gpu.pk, 0), ready=True, static=gpu.node.pool.mig == MigInstances.STATIC)
            profile = mig.find(pick.claim.profile) if mig is not None else None
            if mig is None or profile is None or (start := mig.choose_start(profile.name, pick.start)) is None:
                return False
            self._instances[pick.claim.pk, gpu.pk] = {
                "mig_start": start, "mig_size": profile.size, **isolation.parts_of_instance(pick.claim),
            }  # fmt: skip
            used[gpu.pk] = used.get(gpu.pk, 0) | profile.slices(start)
        return True

    def _keep(self, picks: Iterable[Pick], holds: Callable[[Pick], bool]) -> list[Pick]:
        kept: list[Pick] = []
        for pick in picks:
            (kept if holds(pick) else self.lost).append(pick)
        return kept


def _lock_gpus(keys: set[int]) -> dict[int, Gpu]:
    rows = Gpu.objects.select_for_update(no_key=True, of=("self",)).select_related("node__pool").filter(pk__in=keys)
    return {gpu.pk: gpu for gpu in rows.order_by("pk")}


def _lock_for_charges(picks: Sequence[Pick]) -> None:
    """Lock all that these charges need, in the order of locks; one charge after the other would not keep it."""
    claims = list(Claim.objects.select_related("tenant", "pool").filter(pk__in=[pick.claim.pk for pick in picks]))
    reservation_charges.lock_of(claims)
    everything = dict.fromkeys([*Resource.values, *(name for claim in claims for name in claim.amounts)], 1)
    for claim in sorted({claim.user_id: claim for claim in claims}.values(), key=lambda claim: claim.user_id or 0):
        member_limits.lock(claim.tenant, claim.user_id, everything)
    first = claims[0]
    charging.lock_quotas(charging.ChargeContext(SYSTEM, first.tenant, first.pool, first.uid), amounts=everything)


def _charge(pick: Pick) -> None:
    """Charge the claim as it stands, under its lock, and save it. Raises QuotaExceeded, ReservationFull."""
    claim = Claim.objects.select_related("tenant", "pool").get(pk=pick.claim.pk)
    states.charge_to(claim, claim.amounts)
    Claim.objects.filter(pk=claim.pk).update(**{name: getattr(claim, name) for name in states.CHARGED_FIELDS})


def _write_assignments(picks: Iterable[Pick], instances: Mapping[tuple[int, int], Mapping[str, int]]) -> None:
    rows = [
        Assignment(
            claim=pick.claim,
            gpu_id=key,
            **all_limits(pick.claim),
            held_core=pick.claim.core_request,
            held_memory_mib=pick.claim.memory_mib,
            held_host_memory_mib=borrowable_mib(pick.claim),
            generation=pick.claim.generation,
            **instances.get((pick.claim.pk, key), {}),
        )
        for pick in picks
        for key in pick.gpus
    ]
    # A statement has at most 65,535 parameters.
    Assignment.objects.bulk_create(rows, batch_size=2000)


def _write_claims(picks: Sequence[Pick]) -> None:
    now = timezone.now()
    Claim.objects.filter(pk__in=[pick.claim.pk for pick in picks]).update(
        assigned_at=now, **_state_change(ClaimState.ASSIGNED, reasons=[])
    )


def _state_change(state: str, *, reasons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the updates of `states.move`, for many claims in one statement."""
    now = timezone.now()
    return {
        "state": state,
        "reasons": reasons,
        "timeline": _append_to_timeline(state, now.isoformat()),
        "version": F("version") + 1,
        "updated_at": now,
    }


def _append_to_timeline(state: str, at: str) -> Func:
    return Func(F("timeline"), Value([[state, at]], output_field=TIMELINE), function="array_cat")


@transaction.atomic
def write_refusals(refusals: Mapping[int, tuple[Claim, Refused]], *, fence: Callable[[], None]) -> list[Claim]:
    """Write to claims, by key, why they wait; return the claims whose reasons changed.

    Claims that have changed since they were read are skipped. The given claims are updated in place. `fence` raises if
    the caller may no longer commit: a scheduler that no longer leads does not know why a claim waits.
    """
    fence()
    rows = Claim.objects.select_for_update(no_key=True).filter(IN_QUEUE, pk__in=refusals).order_by("pk")
    versions = dict(rows.values_list("pk", "version"))
    alike: dict[tuple[Refused, str], list[Claim]] = defaultdict(list)
    for key, version in versions.items():
        claim, why = refusals[key]
        if claim.version == version:
            alike[why, claim.state].append(claim)
    for (why, before), claims in alike.items():
        state = before if before == ClaimState.RESUMING else ClaimState.QUEUED
        values = _state_change(state, reasons=reasons_as_json(why))
        if before != ClaimState.PENDING:
            del values["timeline"]
        Claim.objects.filter(pk__in=[claim.pk for claim in claims]).update(**values)
        for claim in claims:
            claim.state, claim.reasons, claim.version = state, reasons_as_json(why), claim.version + 1
            claim.updated_at = values["updated_at"]
    changed = [claim for claims in alike.values() for claim in claims]
    if changed:
        events.claims_changed_on_commit(changed)
    return changed
