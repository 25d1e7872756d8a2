"""Metering of held resources and costs: compared with a count tick by tick, and with itself, split at any point."""

from bisect import bisect_right

from hypothesis import given
from hypothesis import strategies as st

from apps.scheduling.core.metering import Entry, Piece, Span, Tariff, cost, meter, price_at, tariff

LAST = 40
MODELS = ("A10", "H200")
ticks = st.integers(0, LAST)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Entry]:
    """Generate entries of one claim: no quota's level is ever negative."""
    entries: list[Entry] = []
    borne: dict[int | None, int] = {}
    for at in sorted(draw(st.lists(ticks, max_size=8))):
        pool = draw(st.sampled_from([None, 1]))
        amount = draw(st.integers(-borne.get(pool, 0), 200))
        borne[pool] = borne.get(pool, 0) + amount
        entries.append(Entry(at, pool, amount))
    return entries


@st.composite
def placements(draw: st.DrawFn) -> list[Span]:
    spans = []
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(ticks)
        span = Span(draw(st.sampled_from(MODELS)), begin, draw(st.none() | st.integers(begin, LAST)))
        # A claim of several GPUs has as many assignments that begin and end together.
        spans += [span] * draw(st.integers(1, 3))
    return spans


@st.composite
def tariffs(draw: st.DrawFn) -> Tariff:
    days = sorted(draw(st.sets(st.integers(-5, LAST + 5), max_size=4)))
    return [(day, draw(st.integers(0, 1000))) for day in days]


def level(entries: list[Entry], tick: int) -> int:
    """Return each quota's level at a tick by brute force, and the largest of them."""
    borne: dict[int | None, int] = {}
    for entry in entries:
        if entry.at_us <= tick:
            borne[entry.pool] = borne.get(entry.pool, 0) + entry.amount
    return max(borne.values(), default=0)


def live(spans: list[Span], tick: int) -> list[Span]:
    return [span for span in spans if span.begin_us <= tick and (span.end_us is None or tick < span.end_us)]


def total(pieces: list[Piece]) -> int:
    return sum(piece.core_us for piece in pieces)


@given(ledgers(), placements(), ticks, ticks)
def test_what_was_held_is_what_a_count_tick_by_tick_finds(
    entries: list[Entry], spans: list[Span], begin: int, end: int
) -> None:
    counted = sum(level(entries, tick) for tick in range(begin, end) if live(spans, tick))
    assert total(list(meter(entries, spans, begin_us=begin, end_us=end))) == counted


@given(ledgers(), placements(), ticks, ticks, ticks)
def test_a_period_cut_in_two_holds_what_its_parts_hold(
    entries: list[Entry], spans: list[Span], a: int, b: int, c: int
) -> None:
    begin, middle, end = sorted((a, b, c))

    def between(start: int, stop: int) -> int:
        return total(list(meter(entries, spans, begin_us=start, end_us=stop)))

    assert between(begin, middle) + between(middle, end) == between(begin, end)


@given(ledgers(), placements())
def test_each_model_has_its_part_of_every_tick(entries: list[Entry], spans: list[Span]) -> None:
    pieces = list(meter(entries, spans, begin_us=0, end_us=LAST))
    for model in MODELS:
        least = most = 0
        for tick in range(LAST):
            there = live(spans, tick)
            mine = sum(span.model == model for span in there)
            part, rest = divmod(level(entries, tick), len(there)) if there else (0, 0)
            least += part * mine
            most += part * mine + min(rest, mine)
        assert least <= total([piece for piece in pieces if piece.model == model]) <= most


@given(tariffs(), ticks, ticks, st.integers(1, 100))
def test_what_a_piece_costs_is_what_a_count_tick_by_tick_finds(
    prices: Tariff, begin: int, lasts: int, core: int
) -> None:
    piece = Piece("A10", core, begin, begin + lasts)
    days = [day for day, _ in prices]

    def at(tick: int) -> int | None:
        number = bisect_right(days, tick)
        return prices[number - 1][1] if number else None

    ticks_of = range(piece.begin_us, piece.end_us)
    counted = sum(core * (at(tick) or 0) for tick in ticks_of)
    assert cost(piece, prices) == (counted, core * sum(at(tick) is None for tick in ticks_of))
    assert [price_at(prices, tick) for tick in ticks_of] == [at(tick) or 0 for tick in ticks_of]


def test_a_pools_own_price_goes_first_from_its_day_on() -> None:
    assert tariff(general=[(0, 1), (10, 2), (30, 3)], of_pool=[(20, 9)]) == [(0, 1), (10, 2), (20, 9)]
    assert tariff(general=[(0, 1)], of_pool=[]) == [(0, 1)]
    assert tariff(general=[], of_pool=[(5, 1)]) == [(5, 1)]


def test_a_claim_that_two_quotas_bear_counts_once() -> None:
    both = [Entry(0, None, 30), Entry(0, 1, 30), Entry(10, None, -30), Entry(10, 1, -30)]
    assert total(list(meter(both, [Span("A10", 0, 10)], begin_us=0, end_us=20))) == 300


def test_a_quota_made_later_takes_nothing_from_what_was_held_before() -> None:
    late = [Entry(0, 1, 30), Entry(6, None, 30), Entry(10, 1, -30), Entry(10, None, -30)]
    assert total(list(meter(late, [Span("A10", 0, None)], begin_us=0, end_us=20))) == 300


def test_what_waits_for_a_gpu_is_not_counted() -> None:
    assert total(list(meter([Entry(0, None, 50)], [Span("A10", 8, None)], begin_us=0, end_us=10))) == 100
