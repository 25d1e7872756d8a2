"""Clusters of Kubernetes."""
