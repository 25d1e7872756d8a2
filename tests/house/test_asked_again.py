"""`make test` repeats failures of a crowded run once, and counts them as passed only if they pass then."""

from pathlib import Path

import pytest

from tests import run

ONCE = """
from pathlib import Path

def test_that_fails_once():
    seen = Path(__file__).with_name("seen")
    assert seen.exists() or seen.touch()

def test_that_passes():
    Path(__file__).with_name("passes").open("a").write("x")
"""
ALWAYS = "def test_that_fails():\n    assert False\n"


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setitem(run.MARKS, "Some", "")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    # Most of the start-up time is others' plugins, which this test does not need.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def rows_of(suite: Path) -> list[run.Row]:
    """Run the tests of the directory, and repeat what may have failed because of the crowd."""
    rows = run.pytest_suite("Some", caches=suite / "caches")
    return rows + run.suites_again(rows, suite / "caches")


def test_what_passes_alone_has_passed_and_the_table_says_both(suite: Path) -> None:
    (suite / "test_once.py").write_text(ONCE)
    rows = rows_of(suite)
    assert [(row.suite, row.passed, row.failed, row.good) for row in rows] == [
        ("Some", 1, 1, False),
        ("Some, again", 1, 0, True),
    ]
    assert run.is_good(rows)
    # Only failed tests were repeated.
    assert (suite / "passes").read_text() == "x"


def test_what_fails_again_has_failed(suite: Path) -> None:
    (suite / "test_once.py").write_text(ONCE)
    (suite / "test_always.py").write_text(ALWAYS)
    rows = rows_of(suite)
    assert [(row.passed, row.failed) for row in rows] == [(1, 2), (1, 1)]
    assert not run.is_good(rows)
    other = run.Row("Other", 1, 0, 0, 1.0, 1.0, 0)
    assert not run.is_good([*rows, other])


@pytest.mark.parametrize(
    "content",
    ["def broken(:\n", ALWAYS * 1 + "\n".join(ALWAYS.replace("fails", f"fails_{number}") for number in range(run.FEW))],
)
def test_what_is_no_accident_is_not_asked_again(suite: Path, content: str) -> None:
    (suite / "test_many.py").write_text(content)
    rows = rows_of(suite)
    assert len(rows) == 1
    assert not run.is_good(rows)


def test_a_c_suite_that_failed_is_run_once_more_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def c_suite(suite: str) -> list[run.Row]:
        asked.append(suite)
        return [run.Row(suite, None, None, None, 1.0, 1.0, 0)]

    monkeypatch.setattr(run, "c_suite", c_suite)
    rows = [
        run.Row("C, the rest", None, None, None, 1.0, 1.0, 2),
        run.Row("C, sanitizers", None, None, None, 1.0, 1.0, 0),
    ]
    rows += run.suites_again(rows, tmp_path)
    assert asked == ["C, the rest, again"]
    assert run.is_good(rows)
    assert not run.is_good(rows[:2])
