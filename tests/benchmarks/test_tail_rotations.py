"""Intervals of a service's latencies over rotations."""

from benchmarks.shim.parts.tail_rotations import BARE, PREEMPT, interval, make_row, p99


def test_rows_that_are_longer_by_the_same_part_have_an_interval_of_nothing() -> None:
    bare = [[5.0, 6.0, 20.0], [5.0, 7.0, 22.0]]
    longer = [[1.1 * one for one in row] for row in bare]
    least, most = interval(longer, bare, p99)
    assert (round(least, 6), round(most, 6)) == (10.0, 10.0)


def test_a_rotation_that_differs_widens_the_interval() -> None:
    bare = [[10.0] * 100 for _ in range(4)]
    measured = [[10.0] * 100, [10.0] * 100, [10.0] * 100, [20.0] * 100]
    least, most = interval(measured, bare, p99)
    assert (least, most) == (0.0, 100.0)
    row = make_row(PREEMPT, {BARE: bare, PREEMPT: measured})
    assert (row["requests"], row["p99"], row["mean"]) == (400, 20.0, 12.5)
    assert row["p99 against bare, %"] == "+100.0 (+0.0 to +100.0)"
