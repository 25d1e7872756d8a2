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


ENDING = """
import atexit, gc, os, sys
import gpucloud

if sys.argv[1] == "control":
    atexit.unregister(gc.freeze)
everything = len(gc.get_objects())

def note(phase, info):
    if phase == "start":
        os.write(1, f"{len(gc.get_objects()) / everything:.2f} ".encode())

gc.callbacks.append(note)
"""


@pytest.mark.parametrize(("kind", "least", "most"), [("ours", 0.0, 0.1), ("control", 0.9, 1.1)])
def test_the_end_of_a_process_visits_next_to_nothing(kind: str, least: float, most: float) -> None:
    """The share of all objects that the interpreter's last collection visits."""
    command = [sys.executable, "-c", ENDING, kind]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert least <= float(printed.split()[-1]) <= most
