"""Kubernetes: clusters, their pods as claims, the scheduler extender and the admission webhooks."""
