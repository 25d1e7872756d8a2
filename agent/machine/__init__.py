"""The machine itself: its GPUs, processes and arbiter; measuring them, and finding what no limit holds."""
