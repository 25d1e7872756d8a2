"""The selections of `make test` and `make test-fast`."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import run
from tests.conftest import commits, first_of_each

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = {"serial": run.ON_PLATFORMS, "alone": run.BY_THE_CLOCK}


@pytest.mark.parametrize("mark", PLACES)
def test_tests_that_run_in_a_suite_of_their_own_are_where_it_looks(mark: str) -> None:
    marked = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("*.py")
        if f"pytest.mark.{mark}" in file.read_text()
    ]
    assert marked
    assert not [file for file in marked if not file.startswith(tuple(f"{place}/" for place in PLACES[mark]))]


def test_each_chapter_by_the_clock_is_in_one_lane() -> None:
    suite = ROOT / "libvcuda" / "build" / "tests" / "suite"
    listed = subprocess.run([suite, "--list"], capture_output=True, text=True, check=True).stdout
    timed = {line.split()[0] for line in listed.splitlines() if line.endswith("(by the clock)")}
    lanes = [chapter for chapters in run.TIMED.values() for chapter in chapters.split()]
    assert sorted(lanes) == sorted(timed), "tests/run.py, TIMED"


@pytest.mark.django_db(transaction=True)
def test_a_test_that_commits_is_known_by_its_mark(request: pytest.FixtureRequest) -> None:
    assert commits(request.node)
    assert request.node.get_closest_marker("committed")


def test_a_test_that_commits_is_known_by_its_fixture(transactional_db: None, request: pytest.FixtureRequest) -> None:
    assert commits(request.node)


@pytest.mark.django_db
def test_a_test_in_a_transaction_commits_nothing(request: pytest.FixtureRequest) -> None:
    assert not commits(request.node)
    assert not request.node.get_closest_marker("committed")


def collected(name: str, *, long: bool = False) -> Any:
    """Return what stands in for a collected test."""
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda mark: mark if long and mark == "long" else None)


def test_once_keeps_the_first_parameters_of_each_function_that_are_not_long() -> None:
    items = [
        collected("a[1]", long=True),
        collected("a[2]"),
        collected("b"),
        collected("a[3]"),
        collected("c", long=True),
    ]
    assert [item.nodeid for item in first_of_each(items)] == ["a[2]", "b", "c"]
