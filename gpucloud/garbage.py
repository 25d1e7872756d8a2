"""Python's collector of cycles, kept from looking through what a serving process never drops.

A collection stands in everybody's way: nothing else runs in the process until it has looked at every object of its
generations. What is dropped without being part of a cycle is freed at once, with or without it.
"""

import gc

# Objects more than went before the youngest are looked through, and rounds of each generation before the next older
# one. Python's (700, 10, 10) look ten times a second where a thousand frames come in; with these, some milliseconds
# every few seconds (docs/benchmarks.md, Telemetry of a fleet).
SERVING = 10_000, 20, 20


def settle() -> None:
    """Take what is in memory out of the collector's rounds, and have them come more rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SERVING)
