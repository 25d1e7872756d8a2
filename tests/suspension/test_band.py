"""The band of a claim's charts: when its programs stood still."""

from apps.console.shell.measurements import _suspended, chart_of_claim
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine
from tests.suspension.test_suspending import resume, suspended

HOUR = "2026-11-27T{:02}:00:00+00:00"


def bands(*timeline: tuple[str, int]) -> list[list[float | None]]:
    """Return the bands of a claim with this timeline, in hours of the day."""
    claim = Claim(timeline=[[state, HOUR.format(hour)] for state, hour in timeline])
    begin = 1_795_737_600.0
    ends = [(one["from"], one["to"]) for one in _suspended(claim)]
    return [[None if at is None else (at - begin) / 3600 for at in pair] for pair in ends]


def test_a_band_ends_when_the_programs_run_again() -> None:
    states = [("active", 1), ("suspending", 2), ("suspended", 3), ("resuming", 4), ("active", 6)]
    assert bands(*states) == [[3, 6]]
    assert bands(*states, ("suspending", 7), ("suspended", 8)) == [[3, 6], [8, None]]


def test_a_resumption_that_is_refused_is_one_band() -> None:
    states = [("active", 1), ("suspended", 3), ("resuming", 4), ("suspended", 5), ("resuming", 6), ("releasing", 7)]
    assert bands(*states) == [[3, 7]]


def test_a_claim_that_moves_within_its_node_has_none() -> None:
    assert bands(("active", 1), ("suspending", 2), ("resuming", 3), ("active", 4)) == []


def test_the_charts_of_a_suspended_claim_have_it(cast: Cast, machine: Machine) -> None:
    claim = suspended(cast, machine)
    (band,) = chart_of_claim(claim)["bands"]
    assert band["to"] is None
    resume(cast, claim)
    claim.refresh_from_db()
    assert chart_of_claim(claim)["bands"] == [band]
