"""The parts: a module each, with ``ABOUT`` and ``measure(stage, report)``."""
