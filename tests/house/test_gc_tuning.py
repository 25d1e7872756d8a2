"""Cycle collection in serving processes."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpucloud.fastpath import gc_tuning


class Known:
    """An object in memory."""


@pytest.fixture(autouse=True)
def restore_collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


def test_startup_objects_are_not_collected_and_are_freed_when_dropped() -> None:
    known = [Known()]
    dropped = weakref.ref(known[0])
    assert any(found is known for found in gc.get_objects())
    gc_tuning.freeze_startup_objects()
    assert not any(found is known for found in gc.get_objects())
    known.clear()
    assert dropped() is None


def test_nothing_is_collected_while_a_server_starts() -> None:
    gc_tuning.pause_collections()
    assert not gc.isenabled()
    gc_tuning.freeze_startup_objects()
    assert gc.isenabled()
    assert gc.get_threshold() == gc_tuning.SERVING
