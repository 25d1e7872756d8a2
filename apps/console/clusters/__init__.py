"""Pages of Kubernetes clusters: connection, namespaces, import, scheduler configuration."""
