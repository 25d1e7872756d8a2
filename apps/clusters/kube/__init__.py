"""Talking to API servers: the only place that imports the Kubernetes client."""
