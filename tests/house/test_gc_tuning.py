"""Cycle collection in serving processes."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from gpucloud.fastpath import gc_tuning


class Known:
    """An object in memory."""


@pytest.fixture(autouse=True)
def restore_collector() -> Iterator[None]:
    yield
    gc.unfreeze()
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


def test_every_process_of_the_project_collects_less_often() -> None:
    script = "import gpucloud, gc; print(gc.get_threshold())"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(gc_tuning.THRESHOLDS)
