"""What Prometheus reads: `/metrics` and `/metric`."""
