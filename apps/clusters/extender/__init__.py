"""The scheduler extender: HTTP endpoints for kube-scheduler, on a listener of its own."""
