"""Pages of nodes and GPUs: measurements, settings, drains, repairs."""
