"""Tuning of Python's cycle collector for serving processes.

A collection stops the process until every object of its generations has been visited. Objects that are dropped without
being part of a cycle are freed at once, with or without the collector.
"""

import gc

# Thresholds: net new objects before a collection of the youngest generation, and collections of each generation before
# one of the next older. Python's (700, 10, 10) collect ten times a second where a thousand frames come in; with these,
# some milliseconds every few seconds (docs/benchmarks.md, Telemetry of a fleet).
SERVING = 10_000, 20, 20


def pause_collections() -> None:
    """Collect nothing until `freeze_startup_objects`: nearly all that imports create stays."""
    gc.disable()


def freeze_startup_objects() -> None:
    """Exclude the objects in memory now from collections, and collect less often.

    Nothing is collected first: that would take a tenth of the processor time of a start, and free 1 MiB.
    """
    gc.freeze()
    gc.set_threshold(*SERVING)
    gc.enable()
