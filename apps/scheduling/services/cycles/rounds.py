"""Scheduling rounds: one pass over the claims of a pool that may fit.

The core decides; `commits` writes its decisions or drops them. A round ends after a batch of placements, so that each
is committed soon and what happened meanwhile counts for the rest of the queue. The caller runs rounds until one changes
nothing more.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from django.utils import timezone

from apps.quotas.models import Pool
from apps.scheduling.core.backfill import Unanswerable
from apps.scheduling.core.gangs import both, most, place_all
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import NOTHING, Held, Placed, Reason, Refused
from apps.scheduling.models import Claim, ClaimState, Round
from apps.scheduling.services.claims.lent_memory import FreeHostMemory, explain
from apps.scheduling.services.cycles.commits import Outcome, Pick, commit, write_refusals
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.queue_order import QueueOrder, queue_entry
from apps.scheduling.services.cycles.records import Step, reasons_as_json
from apps.scheduling.services.cycles.resuming import explain_places, place_resumed
from apps.scheduling.services.cycles.waiting_claims import WaitingClaim, group_of
from apps.scheduling.services.rebalancing.guarantees import place_on_lent
from gpucloud import counters

logger = logging.getLogger(__name__)

# Placements of one round and of one transaction, and new claims whose refusals one round writes. A claim that arrives
# meanwhile waits for this many.
BATCH = 500
CHANGED = Refused((Reason("changed-meanwhile", 0, "Something changed while it was being placed; it is tried again"),))
# Rounds in a row that place nothing because the database changes under them.
MOST_FRUITLESS = 10


def run_round(pool: Pool) -> Round | None:
    """Run rounds on a cache read now until nothing more fits; return the last record, None if nothing changed."""
    cache, done = PoolCache(pool), None
    for record in rounds(cache, fence=_no_fence, in_full=True):
        done = record or done
    return done


def rounds(cache: PoolCache, *, fence: Callable[[], None], in_full: bool = False) -> Iterator[Round | None]:
    """Run rounds until one changes nothing more; yield the record of each.

    `fence` raises, within a transaction, if the caller may no longer commit. A claim's reasons are written if their
    codes differ from those that it shows; with `in_full` also if only their numbers differ, which in a long queue
    happens all the time.
    """
    fruitless = before = 0
    while fruitless < MOST_FRUITLESS:
        this = _Round(cache, in_full=in_full)
        record = this.run(fence)
        yield record
        if not this.unfinished:
            yield from _place_borrowers(cache, fence)
            yield from _rewrite_reasons(cache, fence)
            return
        # Refusals are remembered: fewer candidates than before mean that a later part of a long queue is reached.
        fruitless = 0 if record or this.candidates < before else fruitless + 1
        before = this.candidates


def _place_borrowers(cache: PoolCache, fence: Callable[[], None]) -> Iterator[None]:
    """Place best-effort claims on lent core, a bounded number at a time: other pools' rounds run in between."""
    while cache.best_effort:
        waiting = [cache.waiting[key].claim for key in cache.best_effort if key in cache.waiting]
        cache.lent_to = place_on_lent(cache.pool, waiting, fence=fence, after=cache.lent_to)
        if cache.lent_to is None:
            return
        yield None


def _rewrite_reasons(cache: PoolCache, fence: Callable[[], None]) -> Iterator[None]:
    """Rewrite outdated reasons, a bounded number at a time: other pools' rounds run in between."""
    if cache.rewriting.is_due:
        for changed in cache.rewriting.run(lambda: list(cache.refused_claims()), fence=fence):
            for key in changed:
                cache.mark_answered(key)
            yield None


class _Round:
    """One round while it runs."""

    def __init__(self, cache: PoolCache, *, in_full: bool) -> None:
        self.cache, self.in_full = cache, in_full
        self.now = timezone.now().timestamp()
        self.picks: list[tuple[WaitingClaim, Placed]] = []
        # The recorded step of each decision, by the claim's key.
        self.steps: dict[int, Step] = {}
        self.refused: list[WaitingClaim] = []
        # Refusals, by the claim's key, that differ from the refusal of the claim's kind.
        self.whys: dict[int, Refused] = {}
        self.outcome = Outcome()
        self.candidates = 0
        # True if another round right after this one may place more.
        self.unfinished = False
        # The core raised: the fleet must be rebuilt, and the record begun anew with it.
        self.broken = False
        self.host = FreeHostMemory(cache.pool)

    def run(self, fence: Callable[[], None]) -> Round | None:
        """Run the round and return its record, or None if nothing changed."""
        record = self._run(fence)
        if self.broken:
            self.cache.begin_record()
        return record

    def _run(self, fence: Callable[[], None]) -> Round | None:
        """Run the steps of a round.

        1. Refresh what reservations withhold, and the plan of the blocked head.
        2. Take the candidates: waiting claims that may fit, and those that no round has answered.
        3. Ask the core about each in the queue's order, until a batch is placed or refused.
        4. Commit the placements together, each under the condition that nothing it rests on changed. Remember what
           was refused, set aside what raised, and read again what lost.
        5. Write the refusals to their claims.
        6. Record the round, if it changed anything.
        """
        started = time.perf_counter()
        cache = self.cache
        # 1. Refresh
        cache.refresh_reservations()
        try:
            cache.blocked_head.refresh(cache.fleet, cache.devices, self._reserved, now=self.now)
        except Unanswerable as error:
            self._recover(error)
            cache.begin_record()
        # 2. Candidates
        candidates = cache.candidates(now=self.now)
        self.candidates = len(candidates)
        if not candidates and not self.refused:
            return None
        if cache.journal.full:
            cache.begin_record()
        # 3. Ask
        try:
            self._ask_all(candidates)
        except Unanswerable as error:
            self._recover(error)
        # 4. Commit
        self._commit(fence)
        self.unfinished |= bool(self.outcome.placed or self.outcome.refused or self.outcome.lost)
        # 5. Write refusals
        news = self._write_refusals(fence)
        # 6. Record
        return self._record(started, news)

    def _record(self, started: float, news: int) -> Round | None:
        """Count the round, and record it if it placed a claim or wrote a refusal."""
        cache = self.cache
        for outcome, number in (("placed", self.outcome.placed), ("lost", self.outcome.lost)):
            counters.DECISIONS.add(cache.pool.name, outcome, amount=len(number))
        if not self.outcome.placed and not news:
            cache.journal.discard_refusals()
            return None
        counters.ROUNDS.add(cache.pool.name)
        counters.ROUND_SECONDS.observe(time.perf_counter() - started, cache.pool.name)
        return cache.journal.write(
            pool=cache.pool,
            duration_us=int((time.perf_counter() - started) * 1e6),
            considered=len(self.steps),
            placed=len(self.outcome.placed),
        )

    def _recover(self, error: Unanswerable) -> None:
        """Set the claims aside and repair the fleet; earlier decisions stand, and the next round asks the rest."""
        cache = self.cache
        logger.error(
            "pool %s: placing raised over claims %s; they are set aside", cache.pool.name, error, exc_info=error
        )
        cache.blocked_head.clear()
        cache.repair_fleet()
        self.broken = self.unfinished = True
        waiting = [cache.waiting[claim.since] for claim in error.ask.members if claim.since in cache.waiting]
        if waiting:
            self._set_aside(waiting)

    def _set_aside(self, waiting: Sequence[WaitingClaim]) -> Refused:
        why, alike = self.cache.set_aside(waiting, now=self.now)
        for one in alike:
            self.whys[one.claim.pk] = why
            self.refused.append(one)
        return why

    def _ask_all(self, candidates: list[WaitingClaim]) -> None:
        """Ask the core about the candidates in the queue's order, until a batch is placed or refused."""
        cache = self.cache
        if cache.blocked_head.head is None and (first := cache.find_first_refused()):
            cache.blocked_head.record_refusal(Ask((queue_entry(first),)))
        order = self.order = QueueOrder(
            cache.pool, candidates, (item.state for item in cache.devices.values()), now=self.now
        )
        for waiting, why in order.early:
            self._refuse([waiting], why)
        while (ask := order.next()) is not None:
            members = order.members(ask)
            if len(members) > 1 or cache.find_refusal(members[0].kind) is None:
                self._ask(ask, members)
            else:
                self.refused += members
            if max(len(self.picks), len(self.refused)) >= BATCH:
                self.unfinished = True
                break

    def _ask(self, ask: Ask, members: list[WaitingClaim]) -> None:
        """Ask the core about one claim or gang, and record the answer in the journal, the cache and the queue."""
        cache, blocked_head = self.cache, self.cache.blocked_head
        blocked_head.refresh(cache.fleet, cache.devices, self._reserved, now=self.now)
        try:
            reserved = self._reserved(ask)
            guard = NOTHING if _has_own_room(members) else blocked_head.withheld_from(ask, now=self.now)
            answer, held = self._place(ask, members[0].claim, both(reserved, guard))
        except Exception as error:
            raise Unanswerable(ask) from error
        steps = cache.journal.record_decision(ask, answer, held=held)
        self.steps.update({waiting.claim.pk: step for waiting, step in zip(members, steps, strict=True)})
        if not isinstance(answer, Refused):
            for waiting, placed in zip(members, answer, strict=True):
                cache.reserved.record_placement(waiting.claim, placed.gpus)
                cache.take(placed, waiting.request)
                self.host.record_placement(waiting.claim, [cache.devices[uuid].state.node for uuid in placed.gpus])
                self.picks.append((waiting, placed))
            self.order.record_placement(ask)
            blocked_head.record_placement(ask, answer, now=self.now)
            return
        if guard and (why := self._explain_refusal(ask, reserved)):
            blocked_head.hold_back(ask)
            self._refuse(members, why)
            for step in steps:
                step["instead"] = reasons_as_json(why)
            return
        if not _has_own_room(members):
            blocked_head.record_refusal(ask)
        if len(members) > 1:
            self._refuse(members, answer)
            return
        if short := self._short_of_host(members[0].claim):
            self._refuse(members, Refused((explain(members[0].claim, short), *answer.reasons)))
            return
        if members[0].claim.state == ClaimState.RESUMING:
            answer = self._explain_places(ask, members[0], answer)
            steps[0]["instead"] = reasons_as_json(answer)
        cache.remember_refusal(members[0].kind, answer)
        self.refused += members

    def _place(self, ask: Ask, first: Claim, held: Held) -> tuple[tuple[Placed, ...] | Refused, Held]:
        """Return the core's answer, and what was withheld for it."""
        if first.state != ClaimState.RESUMING:
            return place_all(self.cache.fleet, ask, held=held), held
        return place_resumed(self.cache.fleet, ask, self.cache.reserved.resume_places(first), held=held)

    def _explain_places(self, ask: Ask, waiting: WaitingClaim, answer: Refused) -> Refused:
        """Return why no GPUs on which the claim may resume can take it; `answer` counts all others as reserved."""
        cache, claim = self.cache, waiting.claim
        places = cache.reserved.resume_places(claim).all
        gpus = cache.fleet.some_gpus(places)
        held = {uuid: room for uuid, room in self._reserved(ask).items() if uuid in places}
        try:
            why = explain_places(waiting.request, gpus, cache.fleet.nodes(), held=held, policy=cache.policy)
        except Exception as error:
            raise Unanswerable(ask) from error
        return why or answer

    def _explain_refusal(self, ask: Ask, reserved: Held) -> Refused | None:
        try:
            return self.cache.blocked_head.explain_refusal(self.cache.fleet, ask, held=reserved)
        except Exception as error:
            raise Unanswerable(ask) from error

    def _reserved(self, ask: Ask) -> Held:
        """Return the amounts by GPU that reservations withhold from these claims (`since` is a claim's key)."""
        cache = self.cache
        found = [cache.waiting[claim.since] for claim in ask.members if claim.since in cache.waiting]
        return most(
            held
            for waiting in found
            for held in (cache.withheld_from(waiting.claim), self._short_of_host(waiting.claim))
        )

    def _short_of_host(self, claim: Claim) -> Held:
        """Return the GPUs that are withheld from the claim because their nodes lack memory for what it borrows."""
        if claim.memory_limit_mib is None:
            return NOTHING
        return self.host.withheld_from(claim, [device.state for device in self.cache.devices.values()])

    def _refuse(self, members: Iterable[WaitingClaim], why: Refused) -> None:
        """Refuse these claims for a reason that others of their kind do not share."""
        for waiting in members:
            self.whys[waiting.claim.pk] = why
            self.refused.append(waiting)
            if group := group_of(waiting.claim):
                self.cache.remember_group_refusal(group, why)

    def _commit(self, fence: Callable[[], None]) -> None:
        """Commit the placements; remember what was refused, set aside what raised, and read again what lost."""
        if not self.picks:
            return
        cache, kinds = self.cache, {waiting.claim.pk: waiting.kind for waiting, _ in self.picks}
        picks = [
            Pick(waiting.claim, tuple(cache.devices[uuid].pk for uuid in answer.gpus), group_of(waiting.claim))
            for waiting, answer in self.picks
        ]
        self.outcome = commit(picks, fence=fence)
        for pick in self.outcome.placed:
            cache.remove_claim(pick.claim.pk)
        for pick in self.outcome.lost:
            self.steps[pick.claim.pk]["instead"] = reasons_as_json(CHANGED)
        for pick, why in self.outcome.refused:
            self.steps[pick.claim.pk]["instead"] = reasons_as_json(why)
            if pick.group is None:
                cache.remember_refusal(kinds[pick.claim.pk], why)
                self.refused.append(cache.waiting[pick.claim.pk])
            else:
                self._refuse([cache.waiting[pick.claim.pk]], why)
        failed = self._set_failed_aside()
        # The GPUs of placements that were not committed are read again, and so are the claims that had changed.
        dropped = [*self.outcome.lost, *(pick for pick, _ in self.outcome.refused), *failed]
        if dropped:
            cache.refresh_devices(gpus={key for pick in dropped for key in pick.gpus})
        if self.outcome.lost:
            cache.refresh_silent_nodes()
            cache.refresh_claims({pick.claim.pk for pick in self.outcome.lost})

    def _set_failed_aside(self) -> list[Pick]:
        """Set aside the claims over which the commit raised, and return their picks.

        If it raised over every pick, the claims are not the cause: the first error is raised.
        """
        failed, cache = self.outcome.failed, self.cache
        if len(failed) > 1 and not (self.outcome.placed or self.outcome.refused or self.outcome.lost):
            raise failed[0][1]
        for picks, error in failed:
            names = ", ".join(str(pick.claim.uid) for pick in picks)
            logger.error("pool %s: committing claims %s raised", cache.pool.name, names, exc_info=error)
            why = self._set_aside([cache.waiting[pick.claim.pk] for pick in picks])
            for pick in picks:
                self.steps[pick.claim.pk]["instead"] = reasons_as_json(why)
        self.unfinished |= bool(failed)
        return [pick for picks, _ in failed for pick in picks]

    def _write_refusals(self, fence: Callable[[], None]) -> int:
        """Write to the refused claims why they wait, if that is still so and new; return the number of claims."""
        news = []
        for waiting in self.refused:
            why = self.whys.get(waiting.claim.pk) or self.cache.find_refusal(waiting.kind)
            if why is not None and self._is_news(waiting.claim, why):
                news.append((waiting.claim, why))
        # New claims first, then those whose reasons were written longest ago.
        news.sort(key=lambda item: (item[0].state != ClaimState.PENDING, item[0].updated_at))
        changed = write_refusals({claim.pk: (claim, why) for claim, why in news[:BATCH]}, fence=fence) if news else []
        for claim in changed:
            self.cache.mark_answered(claim.pk)
            counters.DECISIONS.add(self.cache.pool.name, "refused")
            counters.REFUSALS.add(self.cache.pool.name, claim.reasons[0]["code"] if claim.reasons else "none")
        return len(changed)

    def _is_news(self, claim: Claim, why: Refused) -> bool:
        if claim.state == ClaimState.PENDING:
            return True
        if self.in_full or claim.group is not None:
            return bool(claim.reasons != reasons_as_json(why))
        return [reason["code"] for reason in claim.reasons] != [reason.code for reason in why.reasons]


def _has_own_room(members: Iterable[WaitingClaim]) -> bool:
    """Return True if the claims wait for room reserved or freed for them, not for their place in the queue."""
    return any(
        waiting.claim.reservation_id is not None or waiting.claim.nominated_gpus is not None for waiting in members
    )


def _no_fence() -> None:
    pass
