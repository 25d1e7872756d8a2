"""Telemetry: frames are stored in bulk, rolled up, and dropped by the partition."""
