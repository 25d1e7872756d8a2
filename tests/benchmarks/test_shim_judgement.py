"""Judgement of measurements: gaps without progress, and limits by the times of kernels."""

import itertools
import time

import pytest

from benchmarks.shim.drive import Charged, Profiled
from benchmarks.shim.gaps import Sampler, longest_ms, row_gap_ms
from benchmarks.shim.parts.foreign import Judged, judge_limit, make_row


class Page:
    """A claim whose GPU time grows by a millisecond with every reading, until it stops."""

    def __init__(self, looks: int) -> None:
        self._values = itertools.chain(range(looks), itertools.repeat(looks))

    def usage(self) -> dict[str, int]:
        return {"gpu_time_ns": 1_000_000 * next(self._values)}


def make_judged(rate: float, ns: float = 1e6) -> Judged:
    """Return a program whose iteration has a millisecond of kernels by default."""
    return Judged(rate, None, Profiled(0.0, ns, None))


def test_a_gap_is_counted_from_the_windows_begin_and_to_its_end() -> None:
    assert longest_ms([1.0, 1.1, 1.5], 1.05, 2.0) == pytest.approx(500)
    assert longest_ms([1.0, 1.1, 1.5], 0.0, 1.6) == pytest.approx(1000)
    assert longest_ms([], 1.0, 3.0) == pytest.approx(2000)


def test_a_row_that_counts_no_further_is_no_progress() -> None:
    rows = [{"at": at, "kernels": kernels} for at, kernels in ((1.0, 1), (1.2, 2), (1.4, 2), (1.6, 3))]
    assert row_gap_ms([*rows, {"event": "grow", "at": 1.3}], "kernels", 1.2, 1.7) == pytest.approx(400)


def test_a_tenant_that_stops_leaves_a_gap_and_another_that_goes_on_fills_it() -> None:
    with Sampler({"stops": Page(10), "goes on": Page(1_000_000)}) as sampler:
        while len(sampler.times) < 100:
            time.sleep(0.01)
    begin, end = sampler.times[0], sampler.times[-1]
    assert sampler.gap_ms(["stops"], begin, end) > 5 * sampler.gap_ms(["stops", "goes on"], begin, end)
    assert sampler.share("stops", begin, end) < sampler.share("goes on", begin, end)


@pytest.mark.parametrize(
    ("limit", "rate", "verdict"),
    [
        (50, 500.0, "yes"),  # it needs 80 and gets its limit
        (50, 480.0, "yes"),  # 0.96 of what the limit allows
        (50, 300.0, "short"),
        (50, 700.0, "OVER"),
        (90, 790.0, "yes"),  # it needs less than the limit
        (90, 600.0, "slow"),
    ],
)
def test_a_limit_is_judged_by_kernels_and_by_what_the_program_needs(limit: int, rate: float, verdict: str) -> None:
    assert judge_limit(limit, make_judged(800.0), make_judged(rate)) == verdict


def test_kernels_that_take_less_time_under_a_limit_are_not_over_it() -> None:
    # A power-bound program: 58 % of the rate with 50 % of the time.
    assert judge_limit(50, make_judged(1000.0), make_judged(580.0, 0.86e6)) == "yes"


def test_nothing_is_judged_that_the_profiler_did_not_see() -> None:
    assert judge_limit(50, make_judged(800.0), Judged(400.0, Charged(400.0, 50.0), None)) == "not judged"


def test_the_page_is_judged_by_the_iterations_that_it_was_charged_for() -> None:
    # The window saw 400 a second; the whole run, which was charged, had 480.
    limited = Judged(400.0, Charged(480.0, 49.0), Profiled(40.0, 1e6, 40.5))
    row = make_row("a program", 50, make_judged(800.0), limited)
    assert row["kernels"] == pytest.approx(40.0)
    assert row["whole run: kernels"] == pytest.approx(48.0)
    assert (row["page − kernels"], row["page − CUPTI, same time"]) == ("+1.00", "+0.50")
    assert row["page right"] == "yes"
