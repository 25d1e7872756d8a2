"""Metrics for Prometheus: `/metrics` and `/metric`."""
