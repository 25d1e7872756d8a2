"""Tuning of Python's cycle collector.

A collection stops the process until every object of its generations has been visited. Objects that are dropped without
being part of a cycle are freed at once, with or without the collector.
"""

import atexit
import gc

# Thresholds: net new objects before a collection of the youngest generation, and collections of each generation before
# one of the next older. Python's (700, 10, 10) collect ten times a second where a thousand frames come in; with these,
# some milliseconds every few seconds (docs/benchmarks.md, Telemetry of a fleet). A start of Django takes a tenth less
# processor time with them.
THRESHOLDS = 10_000, 20, 20


def collect_less_often() -> None:
    """Set thresholds for a process that imports Django."""
    gc.set_threshold(*THRESHOLDS)


def end_without_collecting() -> None:
    """Let the interpreter end without looking for cycles among all that exists, half a second of processor time.

    Whoever stops a process waits for it: beside others on a busy node, half a second takes several.
    """
    atexit.register(gc.freeze)


def pause_collections() -> None:
    """Collect nothing until `freeze_startup_objects`: nearly all that imports create stays."""
    gc.disable()


def freeze_startup_objects() -> None:
    """Exclude the objects in memory now from collections, and collect again.

    Nothing is collected first: that would take a tenth of the processor time of a start, and free 1 MiB.
    """
    gc.freeze()
    gc.enable()
