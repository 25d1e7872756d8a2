"""Kubernetes events for a pod's owner: `kubectl describe pod` shows them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

LONGEST = 1024


class PodNames(Protocol):
    """Names of a pod: a row, or a tuple."""

    @property
    def namespace(self) -> str: ...
    @property
    def pod(self) -> str: ...
    @property
    def pod_uid(self) -> str: ...


class Api(Protocol):
    """Client of the pod's cluster."""

    def post(self, path: str, body: Mapping[str, Any]) -> bytes: ...


def post(api: Api, row: PodNames, *, kind: str, reason: str, words: str) -> None:
    """Create an event of the pod; `kind` is Normal or Warning. Raises Unreachable, Refused."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    api.post(
        f"/api/v1/namespaces/{row.namespace}/events",
        {
            "metadata": {"generateName": f"{row.pod[:200]}.", "namespace": row.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": row.namespace, "name": row.pod, "uid": row.pod_uid,
            },
            "type": kind, "reason": reason, "message": words[:LONGEST],
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
            "source": {"component": "gpucloud"}, "reportingComponent": "gpucloud.io/server",
            "reportingInstance": "server",
        },
    )  # fmt: skip
