"""Metering: the time for which shares of GPUs were held, and its cost; whole numbers up to the last division.

Time is in microseconds and a share in percent of one GPU, so a holding is a number of percent-microseconds (`core_us`).
A price is in millionths of the currency for a GPU-hour.

A claim is charged to every quota that covers it, the pool's and the overall one, and a quota that is made later is
charged from then on only. So a claim's level at a moment is the most that any of its quotas was charged for it. It
counts while the claim is on a GPU: a waiting claim holds a quota and no GPU.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

PER_GPU_HOUR = 100 * 3600 * 10**6
MILLIONTHS = 10**6


@dataclass(frozen=True, slots=True)
class Entry:
    """One ledger entry of one claim: from `at_us` on the quota of this pool (None: all pools) is charged more."""

    at_us: int
    pool: int | None
    amount: int


@dataclass(frozen=True, slots=True)
class Span:
    """The time for which an assignment of the claim was on a GPU of this model; `end_us` None: it still is."""

    model: str
    begin_us: int
    end_us: int | None


@dataclass(frozen=True, slots=True)
class Piece:
    """`core` percent of a GPU of this model, held from `begin_us` to `end_us`."""

    model: str
    core: int
    begin_us: int
    end_us: int

    @property
    def core_us(self) -> int:
        """The piece in percent-microseconds."""
        return self.core * (self.end_us - self.begin_us)


# Prices by their begin (microseconds), in millionths of the currency for a GPU-hour, ascending.
Tariff = Sequence[tuple[int, int]]


def meter(entries: Iterable[Entry], spans: Iterable[Span], *, begin_us: int, end_us: int) -> Iterator[Piece]:
    """Yield what one claim held between two moments, piece by piece."""
    spans = list(spans)
    moves: list[tuple[int, Entry | Span, bool]] = [(entry.at_us, entry, True) for entry in entries]
    moves += [(span.begin_us, span, True) for span in spans]
    moves += [(span.end_us, span, False) for span in spans if span.end_us is not None]
    moves.sort(key=itemgetter(0))
    borne: dict[int | None, int] = {}
    live: list[Span] = []
    last = begin_us
    for at_us, move, begins in [*moves, (end_us, None, True)]:
        now = min(max(at_us, begin_us), end_us)
        if now > last:
            yield from _divide(max(borne.values(), default=0), live, last, now)
            last = now
        if isinstance(move, Entry):
            borne[move.pool] = borne.get(move.pool, 0) + move.amount
        elif move is not None:
            live.append(move) if begins else live.remove(move)


def _divide(level: int, live: list[Span], begin_us: int, end_us: int) -> Iterator[Piece]:
    """Yield the level divided over the GPUs that carry it: equal parts, which add up to it exactly."""
    if not live:
        return
    part, rest = divmod(level, len(live))
    for number, span in enumerate(live):
        if core := part + (number < rest):
            yield Piece(span.model, core, begin_us, end_us)


def tariff(*, general: Tariff, of_pool: Tariff) -> Tariff:
    """Return the prices of a pool: its own from the first one on, before that the general ones."""
    first = of_pool[0][0] if of_pool else None
    return [*(item for item in general if first is None or item[0] < first), *of_pool]


def cost(piece: Piece, prices: Tariff) -> tuple[int, int]:
    """Return (percent-microseconds × millionths of the currency, percent-microseconds without a price)."""
    unpriced_until = min(max(prices[0][0] if prices else piece.end_us, piece.begin_us), piece.end_us)
    total = 0
    for number, (from_us, price) in enumerate(prices):
        until = prices[number + 1][0] if number + 1 < len(prices) else piece.end_us
        lasted = min(until, piece.end_us) - max(from_us, piece.begin_us)
        total += piece.core * max(lasted, 0) * price
    return total, piece.core * (unpriced_until - piece.begin_us)


def price_at(prices: Tariff, at_us: int) -> int:
    """Return the price at a moment; zero if there is none."""
    return next((price for from_us, price in reversed(prices) if from_us <= at_us), 0)
