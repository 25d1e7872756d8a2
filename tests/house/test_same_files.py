"""Files of which two parts have a copy each, because neither may import the other."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAME = (("agent/remote/link.py", "cli/gpucloud_cli/link.py"),)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_both_copies_are_the_same(one: str, other: str) -> None:
    assert (ROOT / one).read_bytes() == (ROOT / other).read_bytes(), f"copy {one} to {other}"
