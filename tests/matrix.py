"""Parameters of tests, of which some per commit and all by `make test-long`: pairs, counts, histories, examples."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

# Examples of a property by Hypothesis, unless its test says another number: its own default, and a quarter of that.
RELEASED_EXAMPLES, EXAMPLES, FEWEST_EXAMPLES = 100, 25, 10


def crossed(rows: Sequence[Any], columns: Sequence[Any], *, whole: Any = None) -> list[Any]:
    """Return parameters for all pairs; those left to `make test-long` are marked.

    Per commit each row meets one column, in turn, and one row meets them all: `whole`, or else the first.
    """
    row_of_all = rows[0] if whole is None else whole
    assert row_of_all in rows
    return [
        pytest.param(row, column, marks=[] if row == row_of_all or number % len(columns) == at else pytest.mark.long)
        for number, row in enumerate(rows)
        for at, column in enumerate(columns)
    ]


def scales(per_commit: Any, *released: Any) -> list[Any]:
    """Return parameters for one behaviour at several counts; all but the first are left to `make test-long`."""
    return [per_commit, *(pytest.param(count, marks=pytest.mark.long) for count in released)]


def seeds(count: int, *, per_commit: int = 1) -> list[Any]:
    """Return parameters for so many histories of random acts; all but the first few are left to `make test-long`."""
    return [pytest.param(seed, marks=[] if seed < per_commit else pytest.mark.long) for seed in range(count)]


def examples(released: int) -> int:
    """Return a property's number of examples: as many by `make test-long`, a quarter but at least ten per commit.

    Called while tests are collected: `tests/conftest.py` has chosen the profile by then.
    """
    scaled = released * settings().max_examples // RELEASED_EXAMPLES
    return min(released, max(FEWEST_EXAMPLES, scaled))
