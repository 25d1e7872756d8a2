"""Quantile regression of a claim's next window of use, with a conformal correction. Pure.

A series has one number per window of five minutes: the highest minute of the window, in percent of a GPU, NaN where
nothing was measured. The forecast of a window is linear in recent use, in the use at this time of the day and of the
week, and in the trend; its coefficients minimize the pinball loss (Koenker and Bassett, 1978) by iteratively
reweighted least squares. The correction is adaptive conformal inference (Gibbs and Candès, 2021): an offset that grows
with each window above the forecast and shrinks with each one below, so that over time the wanted part is below,
whatever the series does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

WINDOW_SECONDS = 300
DAY = 86_400 // WINDOW_SECONDS
WEEK, HOUR = 7 * DAY, 3600 // WINDOW_SECONDS
# A shorter history has not shown a night and a day often enough.
LEAST_DAYS = 3
# Enough for thirteen coefficients, and a fit takes milliseconds.
MOST_ROWS = 1500
ROUNDS = 10
# Residuals below half a point are noise of the measurement, and not weighted further.
NOISE = 0.5
RIDGE = 0.01
# Points that one wrong window adds at most. More follows changes faster and lends less between them.
STEP = 3.0
LEAST_OFFSET, MOST_OFFSET = -50.0, 100.0
EXPECTED = 0.5
# Percent above which a window counts as used: a step that a line cannot draw.
BUSY = 5.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients of the median and of the upper quantile, and the correction of the latter in percent of a GPU."""

    expected: tuple[float, ...]
    upper: tuple[float, ...]
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Band:
    """The forecast of one window, in percent of a GPU: its median, and the quantile that is kept."""

    expected: float
    upper: float


def count_days(series: Series) -> float:
    """Return the measured days of a series."""
    return float(np.count_nonzero(~np.isnan(series))) / DAY


def fit(many: Sequence[Series], risk_percent: float) -> Fit | None:
    """Return the fit to all of these series together; None below three measured days."""
    if sum(map(count_days, many)) < LEAST_DAYS:
        return None
    rows, values, ages = _rows(many)
    # The newest quarter judges a fit to the rest (split conformal): its residuals say what a fit leaves out.
    old = ages >= np.quantile(ages, 0.25)
    level = 1 - risk_percent / 100
    rest = values[~old] - rows[~old] @ _regress(rows[old], values[old], level)
    offset = float(np.quantile(rest, level)) if rest.size else 0.0
    expected, upper = (tuple(_regress(rows, values, tau).tolist()) for tau in (EXPECTED, level))
    return Fit(expected, upper, min(max(offset, 0.0), MOST_OFFSET))


def forecast(series: Series, found: Fit) -> Band:
    """Return the forecast of the window after the last one of the series."""
    (row,) = features(series, np.array([len(series)]))
    expected = min(max(float(row @ np.array(found.expected)), 0.0), 100.0)
    upper = min(max(float(row @ np.array(found.upper)) + found.offset, 0.0), 100.0)
    return Band(min(expected, upper), upper)


def is_wrong(used: float, upper: float) -> bool:
    """Return True if the use was above the forecast, by more than the noise of the measurement."""
    return used > upper + NOISE


def corrected(offset: float, *, used: float, upper: float, risk_percent: float) -> float:
    """Return the offset after a window of this use, of which `upper` was forecast."""
    return min(max(offset + STEP * (is_wrong(used, upper) - risk_percent / 100), LEAST_OFFSET), MOST_OFFSET)


def features(series: Series, at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a row for each window `at` this position; only windows before it count.

    A gap is filled from the next longer span around it: the hour, the day.
    """
    room = WEEK + DAY
    padded, begin = np.concatenate([np.full(room, np.nan), series]), at + room

    def span(first: int, last: int) -> NDArray[np.float64]:
        part: NDArray[np.float64] = padded[begin[:, None] + np.arange(first, last)]
        return part

    day = _mean(span(-DAY, 0), np.zeros(len(at)))
    before = _mean(span(-2 * DAY, -DAY), day)
    hour = _mean(span(-HOUR, 0), day)
    last, lately = _most(span(-1, 0), hour), _most(span(-3, 0), hour)
    yesterday = _mean(span(-DAY - 6, -DAY + 7), day)
    then = _most(span(-DAY - 3, -DAY + 4), yesterday)
    week = _mean(span(-WEEK - 6, -WEEK + 7), yesterday)
    then_week = _most(span(-WEEK - 3, -WEEK + 4), then)
    busy, lately_busy = 20.0 * (last > BUSY), 20.0 * (lately > BUSY)
    columns = (last, lately, hour, day, day - before, yesterday, then, week, then_week, busy, lately_busy)
    return np.stack([np.ones(len(at)), *columns, 5.0 * np.sqrt(hour)], axis=1)


def _mean(values: NDArray[np.float64], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
    known = ~np.isnan(values)
    number = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(number > 0, total / np.maximum(number, 1), otherwise)


def _most(values: NDArray[np.float64], otherwise: NDArray[np.float64]) -> NDArray[np.float64]:
    most = np.where(np.isnan(values), -1.0, values).max(axis=1)
    return np.where(most >= 0, most, otherwise)


def _rows(many: Sequence[Series]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return features, values and ages in windows of the newest measured windows, evenly thinned."""
    parts = []
    share = max(1, MOST_ROWS // len(many))
    for series in many:
        # The first hour has nothing before it.
        known = np.flatnonzero(~np.isnan(series))
        known = known[known >= HOUR]
        chosen = known[:: max(1, -(-len(known) // share))]
        parts.append((features(series, chosen), series[chosen], len(series) - chosen))
    rows, values, ages = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(values), np.concatenate(ages)


def _regress(rows: NDArray[np.float64], values: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Return the coefficients of this quantile. The intercept is all but free of the ridge."""
    ridge = np.eye(rows.shape[1]) * RIDGE
    ridge[0, 0] *= 1e-3
    weights = np.ones(len(values))
    found = np.zeros(rows.shape[1])
    for _ in itertools.repeat(None, ROUNDS):
        weighted = rows * weights[:, None]
        found = np.linalg.solve(weighted.T @ rows + ridge * weights.sum(), weighted.T @ values)
        rest = values - rows @ found
        weights = np.where(rest > 0, level, 1 - level) / np.maximum(np.abs(rest), NOISE)
    return found
