"""The judgement of `benchmarks.gpm`: a reading must agree with what the program did."""

from typing import Any

import pytest

from benchmarks.gpm import _disagreements


def row(program: str, **more: Any) -> dict[str, Any]:
    quiet = {"SM %": 0.0, "tensor %": 0.0, "by its rate": 0.0, "DRAM %": 0.0, "of its peak": 0.0}
    return {"program": program, **quiet, **more}


GEMM = {"SM %": 98.0, "tensor %": 88.0, "by its rate": 85.0, "DRAM %": 20.0}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("idle", {}),
        ("gemm", GEMM),
        ("gemm, half", {"SM %": 48.0, "tensor %": 43.0, "by its rate": 42.0}),
        ("copies", {"SM %": 96.0, "DRAM %": 88.0, "of its peak": 90.0}),
    ],
)
def test_readings_that_agree_have_nothing_said_of_them(name: str, values: dict[str, float]) -> None:
    assert _disagreements(row(name, **values)) == []


@pytest.mark.parametrize("tensor", [None, 0.0, 30.0])
def test_a_missing_or_wrong_reading_is_named(tensor: float | None) -> None:
    (line,) = _disagreements(row("gemm", **GEMM | {"tensor %": tensor}))
    assert line == f"gemm: tensor % is {tensor}, not between 70 and 100"
