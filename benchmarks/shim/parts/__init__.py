"""What is measured: a module each, with ``ABOUT`` and ``measure(stage, report)``."""
