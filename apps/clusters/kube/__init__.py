"""Connections to API servers: the only package that imports the Kubernetes client."""
