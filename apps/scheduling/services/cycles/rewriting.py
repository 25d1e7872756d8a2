"""Rewriting of outdated reasons: after a change of fleet, quota or pool, waiting claims show why they wait now.

A round writes the reasons of the claims that it asks about, a batch of them. Others of their kind, and those whose
reasons differ only in numbers, are rewritten here: only where they differ, many in one transaction. In a queue of
10,000 claims every claim may differ after each change, so rewriting takes a bounded part of the scheduler's time.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from apps.quotas.services.refusals import MemberLimitExceeded, QuotaExceeded
from apps.scheduling.core.values import Refused
from apps.scheduling.services.charging.reservation_charges import ReservationFull
from apps.scheduling.services.cycles.commits import write_refusals
from apps.scheduling.services.cycles.records import reasons_as_json
from apps.scheduling.services.cycles.waiting_claims import WaitingClaim

OVER_QUOTA = (QuotaExceeded.code, MemberLimitExceeded.code, ReservationFull.code)
# Rewriting takes at most one part in so many of the scheduler's time.
PART = 10
# Claims of one transaction.
BATCH = 1000

Found = Iterable[tuple[WaitingClaim, Refused]]


class Rewriting:
    """State of a pool's rewriting: if reasons may be outdated, and when it may run next."""

    def __init__(self) -> None:
        self._outdated = True
        self._not_before = 0.0

    def request(self) -> None:
        """Record that reasons may be outdated."""
        self._outdated = True

    @property
    def is_due(self) -> bool:
        """True if reasons may be outdated, and the pause after the last rewriting is over."""
        return self._outdated and time.monotonic() >= self._not_before

    def run(self, found: Callable[[], Found], *, fence: Callable[[], None]) -> Iterator[list[int]]:
        """Rewrite the reasons that differ; yield the keys of the claims after each transaction.

        `found` returns the waiting claims whose refusal is known, with it.
        """
        started, spent = time.perf_counter(), 0.0
        self._outdated = False
        differing = _differing(found())
        for first in range(0, len(differing), BATCH):
            part = {one.claim.pk: (one.claim, why) for one, why in differing[first : first + BATCH]}
            changed = [claim.pk for claim in write_refusals(part, fence=fence)]
            # What happens between two transactions is not this work's time.
            spent += time.perf_counter() - started
            yield changed
            started = time.perf_counter()
        spent += time.perf_counter() - started
        self._not_before = time.monotonic() + (PART - 1) * spent


def _differing(found: Found) -> list[tuple[WaitingClaim, Refused]]:
    """Return the claims that show other reasons than their refusal.

    The numbers of quota reasons are computed when a claim is read, so only the codes of these count.
    """
    differing = []
    # Claims of one kind have the same refusal, and follow one another.
    last, shown, codes = None, list[dict[str, object]](), list[object]()
    for waiting, why in found:
        if why is not last:
            last, shown = why, reasons_as_json(why)
            codes = [reason["code"] for reason in shown]
        reasons = waiting.claim.reasons
        same = [reason["code"] for reason in reasons] == codes and codes[0] in OVER_QUOTA
        if reasons != shown and not same:
            differing.append((waiting, why))
    return differing
