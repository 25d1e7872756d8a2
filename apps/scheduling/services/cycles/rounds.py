"""A round: what may fit of a pool's queue is asked in turn. The core decides; `commits` makes it true or drops it.

A round ends after a batch of placements, so that each is committed soon and what happened meanwhile counts for the
rest. Whoever calls goes on until a round brings nothing more.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from django.utils import timezone

from apps.quotas.models import Pool
from apps.scheduling.core.front import Unanswerable
from apps.scheduling.core.gangs import NOTHING, Held, both, most, place_all
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.values import Placed, Reason, Refused
from apps.scheduling.models import Claim, ClaimState, Round
from apps.scheduling.services.cycles.commits import Outcome, Pick, commit, tell
from apps.scheduling.services.cycles.pool_cache import Picture
from apps.scheduling.services.cycles.queue_order import Turns, waits
from apps.scheduling.services.cycles.records import Step, told
from apps.scheduling.services.cycles.waiting_claims import Waiting, group_of
from apps.scheduling.services.rebalancing.guarantees import place_on_lent
from gpucloud import counters

logger = logging.getLogger(__name__)

# Placements of one round and of one transaction, and new claims that are told that they wait. A claim that comes
# meanwhile waits so long.
BATCH = 500
CHANGED = Refused((Reason("changed-meanwhile", 0, "Something changed while it was being placed; it is tried again"),))
# Rounds in a row that bring nothing because everything changes under them.
MOST_FRUITLESS = 10


def run_round(pool: Pool) -> Round | None:
    """Rounds on a picture read now, until nothing more fits; the last record made, None where nothing changed."""
    picture, done = Picture(pool), None
    for record in rounds(picture, fence=_no_fence, in_full=True):
        done = record or done
    return done


def rounds(picture: Picture, *, fence: Callable[[], None], in_full: bool = False) -> Iterator[Round | None]:
    """Rounds until one brings nothing more. `fence` raises, within a transaction, where one may commit no longer.

    A claim's reasons are written when they are of another kind than those it shows; in full, also when their numbers
    are others. Of a long queue those change all the time.
    """
    fruitless = before = 0
    while fruitless < MOST_FRUITLESS:
        this = _Round(picture, in_full=in_full)
        record = this.run(fence)
        yield record
        if not this.unfinished:
            yield from _lend(picture, fence)
            return
        # What was refused is remembered: fewer to ask than before brings the rest of a long queue its turn.
        fruitless = 0 if record or this.candidates < before else fruitless + 1
        before = this.candidates


def _lend(picture: Picture, fence: Callable[[], None]) -> Iterator[None]:
    """Best-effort claims take what others lend, some at a time: other pools have their turn between."""
    while picture.best_effort:
        waiting = [picture.waiting[key].claim for key in picture.best_effort if key in picture.waiting]
        picture.lent_to = place_on_lent(picture.pool, waiting, fence=fence, after=picture.lent_to)
        if picture.lent_to is None:
            return
        yield None


class _Round:
    """One round while it runs."""

    def __init__(self, picture: Picture, *, in_full: bool) -> None:
        self.picture, self.in_full = picture, in_full
        self.now = timezone.now().timestamp()
        self.picks: list[tuple[Waiting, Placed]] = []
        # What was asked, as it is recorded, by the claim's key.
        self.asked: dict[int, Step] = {}
        self.refused: list[Waiting] = []
        # Why, by the claim's key, where that is not the same for all of its kind.
        self.whys: dict[int, Refused] = {}
        self.outcome = Outcome()
        self.candidates = 0
        # Whether another round right after this one may bring more.
        self.unfinished = False
        # The core raised: its fleet has to be made anew, and with it the record.
        self.broken = False

    def run(self, fence: Callable[[], None]) -> Round | None:
        """Ask, commit, tell, record."""
        record = self._decide(fence)
        if self.broken:
            self.picture.begin_record()
        return record

    def _decide(self, fence: Callable[[], None]) -> Round | None:
        started = time.perf_counter()
        picture = self.picture
        picture.look_at_reservations()
        try:
            picture.front.look(picture.fleet, picture.devices, self._reserved, now=self.now)
        except Unanswerable as error:
            self._set_aside(error)
            picture.begin_record()
        candidates = picture.candidates(now=self.now)
        self.candidates = len(candidates)
        if not candidates and not self.refused:
            return None
        if picture.journal.full:
            picture.begin_record()
        try:
            self._ask_all(candidates)
        except Unanswerable as error:
            self._set_aside(error)
        self._commit(fence)
        self.unfinished |= bool(self.outcome.placed or self.outcome.refused or self.outcome.lost)
        news = self._tell(fence)
        for outcome, number in (("placed", self.outcome.placed), ("lost", self.outcome.lost)):
            counters.DECISIONS.add(picture.pool.name, outcome, amount=len(number))
        if not self.outcome.placed and not news:
            picture.journal.nothing_came_of_it()
            return None
        counters.ROUNDS.add(picture.pool.name)
        counters.ROUND_SECONDS.observe(time.perf_counter() - started, picture.pool.name)
        return picture.journal.write(
            pool=picture.pool,
            duration_us=int((time.perf_counter() - started) * 1e6),
            considered=len(self.asked),
            placed=len(self.outcome.placed),
        )

    def _set_aside(self, error: Unanswerable) -> None:
        """The claims wait for a while; what was decided before them stands, and the next round asks the rest."""
        picture = self.picture
        logger.error(
            "pool %s: placing raised over claims %s; they are set aside", picture.pool.name, error, exc_info=error
        )
        picture.front.drop()
        picture.mend()
        self.broken = self.unfinished = True
        waiting = [picture.waiting[claim.since] for claim in error.ask.members if claim.since in picture.waiting]
        if waiting:
            self._leave_alone(waiting)

    def _leave_alone(self, waiting: Sequence[Waiting]) -> Refused:
        why, alike = self.picture.set_aside(waiting, now=self.now)
        for one in alike:
            self.whys[one.claim.pk] = why
            self.refused.append(one)
        return why

    def _ask_all(self, candidates: list[Waiting]) -> None:
        picture = self.picture
        if picture.front.head is None and (first := picture.first_refused()):
            picture.front.refused(Ask((waits(first),)))
        turns = self.turns = Turns(
            picture.pool, candidates, (item.state for item in picture.devices.values()), now=self.now
        )
        for waiting, why in turns.early:
            self._refuse([waiting], why)
        while (ask := turns.next()) is not None:
            members = turns.members(ask)
            if len(members) > 1 or picture.refusal_of(members[0].kind) is None:
                self._ask(ask, members)
            else:
                self.refused += members
            if max(len(self.picks), len(self.refused)) >= BATCH:
                self.unfinished = True
                break

    def _ask(self, ask: Ask, members: list[Waiting]) -> None:
        picture, front = self.picture, self.picture.front
        front.look(picture.fleet, picture.devices, self._reserved, now=self.now)
        try:
            reserved = self._reserved(ask)
            guard = NOTHING if _has_its_own(members) else front.held_from(ask, now=self.now)
            held = both(reserved, guard)
            answer = place_all(picture.fleet, ask, held=held)
        except Exception as error:
            raise Unanswerable(ask) from error
        steps = picture.journal.asked(ask, answer, held=held)
        self.asked.update({waiting.claim.pk: step for waiting, step in zip(members, steps, strict=True)})
        if not isinstance(answer, Refused):
            for waiting, placed in zip(members, answer, strict=True):
                picture.reserved.took(waiting.claim, placed.gpus)
                picture.take(placed, waiting.request)
                self.picks.append((waiting, placed))
            self.turns.placed(ask)
            front.placed(ask, answer, now=self.now)
            return
        if guard and (why := self._why_kept_out(ask, reserved)):
            front.keep_out(ask)
            self._refuse(members, why)
            for step in steps:
                step["instead"] = told(why)
            return
        if not _has_its_own(members):
            front.refused(ask)
        if len(members) > 1:
            self._refuse(members, answer)
        else:
            picture.remember(members[0].kind, answer)
            self.refused += members

    def _why_kept_out(self, ask: Ask, reserved: Held) -> Refused | None:
        try:
            return self.picture.front.why_not(self.picture.fleet, ask, held=reserved)
        except Exception as error:
            raise Unanswerable(ask) from error

    def _reserved(self, ask: Ask) -> Held:
        """What these claims may not count on because it is reserved; the core numbers claims by their keys."""
        picture = self.picture
        found = [picture.waiting[claim.since] for claim in ask.members if claim.since in picture.waiting]
        return most(picture.held(waiting.claim) for waiting in found)

    def _refuse(self, members: Iterable[Waiting], why: Refused) -> None:
        """For a reason that is these claims' own."""
        for waiting in members:
            self.whys[waiting.claim.pk] = why
            self.refused.append(waiting)
            if group := group_of(waiting.claim):
                self.picture.remember_group(group, why)

    def _commit(self, fence: Callable[[], None]) -> None:
        if not self.picks:
            return
        picture, kinds = self.picture, {waiting.claim.pk: waiting.kind for waiting, _ in self.picks}
        picks = [
            Pick(waiting.claim, tuple(picture.devices[uuid].pk for uuid in answer.gpus), group_of(waiting.claim))
            for waiting, answer in self.picks
        ]
        self.outcome = commit(picks, fence=fence)
        for pick in self.outcome.placed:
            picture.let_go(pick.claim.pk)
        for pick in self.outcome.lost:
            self.asked[pick.claim.pk]["instead"] = told(CHANGED)
        for pick, why in self.outcome.refused:
            self.asked[pick.claim.pk]["instead"] = told(why)
            if pick.group is None:
                picture.remember(kinds[pick.claim.pk], why)
                self.refused.append(picture.waiting[pick.claim.pk])
            else:
                self._refuse([picture.waiting[pick.claim.pk]], why)
        failed = self._failures()
        # What was not taken after all is read again, and so are the claims that had changed.
        wrong = [*self.outcome.lost, *(pick for pick, _ in self.outcome.refused), *failed]
        if wrong:
            picture.refresh_devices(gpus={key for pick in wrong for key in pick.gpus})
        if self.outcome.lost:
            picture.listen_for_silence()
            picture.refresh_claims({pick.claim.pk for pick in self.outcome.lost})

    def _failures(self) -> list[Pick]:
        """Set aside over which the commit raised. Where it raised over everything, that is not the claims' fault."""
        failed, picture = self.outcome.failed, self.picture
        if len(failed) > 1 and not (self.outcome.placed or self.outcome.refused or self.outcome.lost):
            raise failed[0][1]
        for picks, error in failed:
            names = ", ".join(str(pick.claim.uid) for pick in picks)
            logger.error("pool %s: committing claims %s raised", picture.pool.name, names, exc_info=error)
            why = self._leave_alone([picture.waiting[pick.claim.pk] for pick in picks])
            for pick in picks:
                self.asked[pick.claim.pk]["instead"] = told(why)
        self.unfinished |= bool(failed)
        return [pick for picks, _ in failed for pick in picks]

    def _tell(self, fence: Callable[[], None]) -> int:
        """Why the refused go on waiting, as far as that is so still; returns to how many it was news."""
        news = []
        for waiting in self.refused:
            why = self.whys.get(waiting.claim.pk) or self.picture.refusal_of(waiting.kind)
            if why is not None and self._is_news(waiting.claim, why):
                news.append((waiting.claim, why))
        # Of reasons that were written before, those that are oldest.
        news.sort(key=lambda item: (item[0].state != ClaimState.PENDING, item[0].updated_at))
        changed = tell({claim.pk: (claim, why) for claim, why in news[:BATCH]}, fence=fence) if news else []
        for claim in changed:
            self.picture.answered(claim.pk)
            counters.DECISIONS.add(self.picture.pool.name, "refused")
            counters.REFUSALS.add(self.picture.pool.name, claim.reasons[0]["code"] if claim.reasons else "none")
        return len(changed)

    def _is_news(self, claim: Claim, why: Refused) -> bool:
        if claim.state == ClaimState.PENDING:
            return True
        if self.in_full or claim.group is not None:
            return bool(claim.reasons != told(why))
        return [reason["code"] for reason in claim.reasons] != [reason.code for reason in why.reasons]


def _has_its_own(members: Iterable[Waiting]) -> bool:
    """Whether they wait for what is kept for them, not in the queue's order."""
    return any(
        waiting.claim.reservation_id is not None or waiting.claim.nominated_gpus is not None for waiting in members
    )


def _no_fence() -> None:
    pass
