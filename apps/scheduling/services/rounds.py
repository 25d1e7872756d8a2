"""A round: what may fit of a pool's queue is asked in turn. The core decides; `commits` makes it true or drops it.

A round ends after a batch of placements, so that each is committed soon and what happened meanwhile counts for the
rest. Whoever calls goes on until a round brings nothing more.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from apps.quotas.models import Pool
from apps.scheduling.core.values import Placed, Reason, Refused
from apps.scheduling.models import Claim, ClaimState, Round
from apps.scheduling.services.commits import Outcome, Pick, commit, tell
from apps.scheduling.services.lending import place_on_lent
from apps.scheduling.services.picture import Picture, Waiting
from apps.scheduling.services.records import Step, told

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
    fruitless = 0
    while fruitless < MOST_FRUITLESS:
        this = _Round(picture, in_full=in_full)
        record = this.run(fence)
        yield record
        if not this.unfinished:
            if picture.best_effort:
                place_on_lent(picture.pool, fence=fence)
            return
        fruitless = 0 if record else fruitless + 1


def in_turn(waiting: Iterable[Waiting]) -> list[Waiting]:
    """The order in which they are asked: by priority, then by age."""
    return sorted(waiting, key=lambda item: (-item.claim.priority, item.claim.pk))


class _Round:
    """One round while it runs."""

    def __init__(self, picture: Picture, *, in_full: bool) -> None:
        self.picture, self.in_full = picture, in_full
        self.picks: list[tuple[Waiting, Placed]] = []
        # What was asked, as it is recorded, by the claim's key.
        self.asked: dict[int, Step] = {}
        self.refused: list[Waiting] = []
        self.outcome = Outcome()
        # Whether another round right after this one may bring more.
        self.unfinished = False

    def run(self, fence: Callable[[], None]) -> Round | None:
        """Ask, commit, tell, record."""
        started = time.perf_counter()
        self.picture.look_at_reservations()
        candidates = in_turn(self.picture.candidates())
        if not candidates:
            return None
        if self.picture.journal.full:
            self.picture.begin_record()
        for waiting in candidates:
            self._ask(waiting)
            if max(len(self.picks), len(self.refused)) >= BATCH:
                self.unfinished = True
                break
        self._commit(fence)
        self.unfinished |= bool(self.outcome.placed or self.outcome.refused or self.outcome.lost)
        news = self._tell()
        if not self.outcome.placed and not news:
            self.picture.journal.nothing_came_of_it()
            return None
        return self.picture.journal.write(
            pool=self.picture.pool,
            duration_us=int((time.perf_counter() - started) * 1e6),
            considered=len(self.asked),
            placed=len(self.outcome.placed),
        )

    def _ask(self, waiting: Waiting) -> None:
        picture = self.picture
        if picture.refusal_of(waiting.kind) is None:
            held = picture.held(waiting.claim)
            answer = picture.fleet.place(waiting.request, held=held)
            step = picture.journal.asked(waiting.claim.uid, waiting.request, answer, held=held)
            self.asked[waiting.claim.pk] = step
            if isinstance(answer, Placed):
                picture.reserved.took(waiting.claim, answer.gpus)
                picture.take(answer, waiting.request)
                self.picks.append((waiting, answer))
                return
            picture.remember(waiting.kind, answer)
        self.refused.append(waiting)

    def _commit(self, fence: Callable[[], None]) -> None:
        if not self.picks:
            return
        picture, kinds = self.picture, {waiting.claim.pk: waiting.kind for waiting, _ in self.picks}
        picks = [
            Pick(waiting.claim, tuple(picture.devices[uuid].pk for uuid in answer.gpus))
            for waiting, answer in self.picks
        ]
        self.outcome = commit(picks, fence=fence)
        for pick in self.outcome.placed:
            picture.let_go(pick.claim.pk)
        for pick in self.outcome.lost:
            self.asked[pick.claim.pk]["instead"] = told(CHANGED)
        for pick, why in self.outcome.refused:
            self.asked[pick.claim.pk]["instead"] = told(why)
            picture.remember(kinds[pick.claim.pk], why)
            self.refused.append(picture.waiting[pick.claim.pk])
        # What was not taken after all is read again, and so are the claims that had changed.
        wrong = [*self.outcome.lost, *(pick for pick, _ in self.outcome.refused)]
        if wrong:
            picture.refresh_devices(gpus={key for pick in wrong for key in pick.gpus})
        if self.outcome.lost:
            picture.listen_for_silence()
            picture.refresh_claims({pick.claim.pk for pick in self.outcome.lost})

    def _tell(self) -> int:
        """Why the refused go on waiting, as far as that is so still; returns to how many it was news."""
        news = []
        for waiting in self.refused:
            why = self.picture.refusal_of(waiting.kind)
            if why is not None and self._is_news(waiting.claim, why):
                news.append((waiting.claim, why))
        # Of reasons that were written before, those that are oldest.
        news.sort(key=lambda item: (item[0].state != ClaimState.PENDING, item[0].updated_at))
        changed = tell({claim.pk: (claim, why) for claim, why in news[:BATCH]}) if news else []
        for claim in changed:
            self.picture.answered(claim.pk)
        return len(changed)

    def _is_news(self, claim: Claim, why: Refused) -> bool:
        if claim.state == ClaimState.PENDING:
            return True
        if self.in_full:
            return bool(claim.reasons != told(why))
        return [reason["code"] for reason in claim.reasons] != [reason.code for reason in why.reasons]


def _no_fence() -> None:
    pass
