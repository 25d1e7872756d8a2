"""Telemetry: bulk storage of frames, roll-ups, and partitions."""
