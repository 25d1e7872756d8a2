"""Borrowed memory in `top`: a column of what is in host memory, only where something may borrow."""

from typing import Any

from gpucloud_cli.commands.top import COLUMNS, columns_of, row

CLAIM: dict[str, Any] = {
    "tenant": "acme", "name": "sweep", "state": "active", "core_limit": 10, "gpu_count": 1, "memory_mib": 2048,
    "memory_limit_mib": 12288, "uid": "u", "pool": "default", "created_by": "user:max",
    "assignments": [{"node": "gpu1", "gpu_index": 0}],
}  # fmt: skip
SERIES: dict[str, Any] = {
    "claim": "u", "core_percent": [5.0], "throttled_percent": [0.0], "memory_mib": [5120.0], "age_seconds": 1.0,
}  # fmt: skip


def test_what_is_out_is_shown_beside_the_memory_of_the_limit() -> None:
    found = row(CLAIM, [{**SERIES, "borrowed_mib": [3072.0], "memory_out_mib": [4096.0]}])
    assert (found["memory"], found["out"]) == ("5120/12288 MiB", "4096 MiB")
    assert columns_of([found]) == COLUMNS


def test_without_borrowers_there_is_no_such_column() -> None:
    found = row({**CLAIM, "memory_limit_mib": None}, [SERIES])
    assert (found["memory"], found["out"]) == ("5120/2048 MiB", None)
    assert "out" not in columns_of([found])
