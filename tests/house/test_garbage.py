"""A serving process's memory: what it knows is not looked through again and again, and is freed all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpucloud import garbage


class Known:
    """Something in memory."""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_is_known_is_out_of_the_collectors_rounds_and_is_freed_when_it_is_dropped() -> None:
    known = [Known()]
    dropped = weakref.ref(known[0])
    assert any(found is known for found in gc.get_objects())
    garbage.settle()
    assert not any(found is known for found in gc.get_objects())
    known.clear()
    assert dropped() is None
