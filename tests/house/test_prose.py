"""The check of docstrings: `deploy/prose.py`."""

import pytest

from deploy import prose


def complaint(source: str, name: str = "gpucloud/example.py") -> str:
    return "\n".join(prose.of_source(name, source))


@pytest.mark.parametrize(
    "source",
    [
        '"""What lives here."""',
        '"""Of two rows the newer."""',
        'class Row:\n    """Whose it is."""',
        'def row():\n    """Whether there is one."""',
        'def row():\n    """The newest row."""',
        'async def row():\n    """`7` as a version."""',
    ],
)
def test_a_docstring_with_a_wrong_first_word_fails(source: str) -> None:
    assert "begin with" in complaint(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Rows of the ledger."""',
        'class Row:\n    """A row of the ledger."""',
        'def row():\n    """Return the newest row."""',
        "def row():\n    pass",
    ],
)
def test_a_plain_docstring_passes(source: str) -> None:
    assert complaint(source) == ""


def test_a_test_may_state_the_behaviour_and_no_riddle() -> None:
    name = "tests/house/test_example.py"
    assert complaint('def test_row():\n    """A lowered quota leaves running claims alone."""', name) == ""
    assert "'Who'" in complaint('def test_row():\n    """Who has a row keeps it."""', name)
