"""`make bench-telemetry`: a fleet's telemetry into one server process, and its cost."""
