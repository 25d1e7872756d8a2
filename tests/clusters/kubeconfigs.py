"""Kubeconfigs of clusters that do not exist."""

from typing import Any

import yaml


def kubeconfig(
    *, server: str = "https://127.0.0.1:1", user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None
) -> str:
    """Return a kubeconfig as `kubectl config view --minify --flatten --raw` prints it."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "admin@kube",
            "contexts": [{"name": "admin@kube", "context": {"cluster": "kube", "user": "admin"}}],
            "clusters": [{"name": "kube", "cluster": {"server": server, **(cluster or {})}}],
            "users": [{"name": "admin", "user": {"token": "a-secret-token"} if user is None else user}],
        }
    )
