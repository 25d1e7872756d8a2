"""The scheduler extender: what kube-scheduler asks of us, over HTTP, on a listener of its own."""
