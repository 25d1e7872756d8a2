"""Replay of past use under rebalance policies: what each would have lent, and which owners it throttled. Pure.

A window of five minutes is one step. At its begin a policy sees the windows before, `window_seconds` of them; in the
window the owner needs its highest minute, up to its guarantee. If that is more than is kept for it, the owner counts as
throttled, gets all of its guarantee back, and nothing counts as lent in this window. On a node the owner waits less:
until the arbiter's next round.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from apps.forecasts import quantiles
from apps.forecasts.quantiles import DAY, WINDOW_SECONDS, Fit, Series
from apps.rebalancing import POLICIES, Policy
from apps.rebalancing.values import Bounds, Forecast, Observation

HOURS_OF_A_WINDOW = WINDOW_SECONDS / 3600
# A fit is new enough for two days: what changes faster, the recent use and the correction follow.
REFIT = 2 * DAY
KEPT = 28 * DAY
# Policies that give back only what the owner needs beyond its part; the others, everything once it works.
BY_NEED = frozenset({"percentile", "forecast"})


@dataclass(frozen=True, slots=True)
class Past:
    """The past of one claim: its name, its guarantee in percent of a GPU, and its use."""

    claim: str
    core_request: int
    used: Series


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a policy. `lent`: a row for each claim, points of core for each window, zero where unknown.

    `wrong_percent`: the part of the forecasts that was exceeded; None for policies without any.
    """

    policy: str
    windows: int
    lent_core_hours: float
    throttled: Mapping[str, int]
    changes: int
    wrong_percent: float | None = None
    lent: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def throttled_percent(self) -> float:
        """The part of all windows in which an owner would have been throttled."""
        return 100 * sum(self.throttled.values()) / self.windows if self.windows else 0.0


def replay(
    name: str,
    pasts: Sequence[Past],
    bounds: Bounds,
    *,
    begin: int,
    first: int = 0,
    made: Mapping[str, Mapping[int, Forecast]] | None = None,
) -> Outcome:
    """Replay one policy from the `first` window on; the first window of all series begins at `begin`, Unix seconds.

    `made`: forecasts by claim and window that are known already.
    """
    throttled: dict[str, int] = {}
    lent, windows, changes, wrong, judged = [], 0, 0, 0, 0
    for past in pasts:
        foretold: Mapping[int, Forecast] = {}
        if name == "forecast":
            foretold = forecasts(past.used, bounds.forecast_risk_percent, first) if made is None else made[past.claim]
        one = _Replay(name, past, bounds, foretold, begin).run(first)
        lent.append(one.lent)
        windows, changes = windows + one.windows, changes + one.changes
        if one.throttled:
            throttled[past.claim] = one.throttled
        for at, found in foretold.items():
            known = not np.isnan(past.used[at])
            judged, wrong = judged + known, wrong + (known and quantiles.is_wrong(past.used[at], found.upper_percent))
    total = float(sum(row.sum() for row in lent)) / 100 * HOURS_OF_A_WINDOW
    share = 100 * wrong / judged if judged else None
    return Outcome(name, windows, total, throttled, changes, share, np.array(lent))


def forecasts(used: Series, risk_percent: int, first: int = 0) -> dict[int, Forecast]:
    """Return the forecast of each window from `first` on, made from the windows before it alone."""
    found: Fit | None = None
    made: dict[int, Forecast] = {}
    rows = quantiles.features(used, np.arange(len(used)))
    for at in range(len(used)):
        past = used[max(0, at - KEPT) : at]
        if (at - first) % REFIT == 0 and (new := quantiles.fit([past], risk_percent)) is not None:
            found = new if found is None else replace(new, offset=found.offset)
        if found is None:
            continue
        upper = min(max(float(rows[at] @ found.upper) + found.offset, 0.0), 100.0)
        expected = min(max(float(rows[at] @ found.expected), 0.0), upper)
        if at >= first:
            made[at] = Forecast(upper, expected, risk_percent, len(past) / DAY)
        if not np.isnan(used[at]):
            offset = quantiles.corrected(found.offset, used=used[at], upper=upper, risk_percent=risk_percent)
            found = replace(found, offset=offset)
    return made


class _Replay:
    """One claim under one policy."""

    def __init__(self, name: str, past: Past, bounds: Bounds, foretold: Mapping[int, Forecast], begin: int) -> None:
        self._policy: Policy = POLICIES[name]
        self._by_need = name in BY_NEED
        self._past, self._bounds, self._foretold, self._begin = past, bounds, foretold, begin
        self._seen = max(1, bounds.window_seconds // WINDOW_SECONDS)
        self._changed_at: int | None = None
        self.lent = np.zeros(len(past.used))
        self.windows = self.throttled = self.changes = 0

    def run(self, first: int) -> "_Replay":
        lent = 0
        for at in range(first, len(self._past.used)):
            used = float(self._past.used[at])
            # Nothing is known of a gap, and nothing counts.
            if not math.isnan(used):
                now = self._begin + at * WINDOW_SECONDS
                self.windows += 1
                lent = self._live(at, self._decide(at, lent, now), used, now)
        return self

    def _decide(self, at: int, lent: int, now: int) -> int:
        """Let the policy see the windows before, and return what is lent from now on."""
        before = self._past.used[max(0, at - self._seen) : at]
        if before.size < self._seen or np.isnan(before).any():
            return lent
        seen = self._observe(at, lent, before)
        for change in self._policy([seen], self._bounds, now):
            if change.kind in ("lend", "give-back"):
                self.changes += 1
                self._changed_at = now
                return change.after["lent_core"]
        return lent

    def _observe(self, at: int, lent: int, before: Series) -> Observation:
        request = self._past.core_request
        return Observation(
            claim=self._past.claim,
            core_request=request,
            core_limit=100,
            memory_mib=1,
            asked_core_limit=100,
            lent_core=lent,
            measured_seconds=self._bounds.window_seconds,
            core_mean=float(before.mean()),
            core_p95=float(before[0]) if before.size == 1 else float(np.quantile(before, 0.95)),
            core_latest=float(before[-1]),
            memory_p95_mib=1,
            memory_most_mib=1,
            changed_at=self._changed_at,
            forecast=self._foretold.get(at),
        )

    def _live(self, at: int, lent: int, used: float, now: int) -> int:
        """Let the owner use its GPU for a window, and return what is lent after it."""
        need = min(used, float(self._past.core_request))
        if lent and need > self._past.core_request - lent:
            self.throttled += 1
        elif not (lent and not self._by_need and used >= self._bounds.wake_percent):
            self.lent[at] = lent
            return lent
        self.changes += 1
        self._changed_at = now
        return 0


def compare(
    names: Iterable[str], pasts: Sequence[Past], bounds: Bounds, *, begin: int, first: int = 0
) -> list[Outcome]:
    """Replay several policies."""
    return [replay(name, pasts, bounds, begin=begin, first=first) for name in names]
