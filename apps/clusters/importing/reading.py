"""Reader of a cluster's objects for a plan."""

import json
from typing import Any

from apps.clusters.formats import pods
from apps.clusters.importing.plan import QUOTA_MAP, Snapshot
from apps.clusters.kube.client import Client, Refused
from apps.clusters.services import quota_sync

MISSING = 404
LIVE = "status.phase!=Succeeded,status.phase!=Failed"


def snapshot(client: Client) -> Snapshot:
    """Return the running pods and their limits. Raises Unreachable, Refused."""
    namespace, name = QUOTA_MAP
    quota_map = _there(client, f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    return Snapshot(
        pods=list_objects(client, "/api/v1/pods", fieldSelector=LIVE),
        # Without our own: they repeat the tenants' quotas.
        resource_quotas=list_objects(
            client, "/api/v1/resourcequotas", fieldSelector=f"metadata.name!={quota_sync.NAME}"
        ),
        quota_map=None if quota_map is None else quota_map.get("data") or {},
        sharepods=list_objects(client, "/apis/kubeshare.nthu/v1/sharepods", optional=True),
        labels={
            str(item["metadata"]["name"]): pods.labels(item) for item in list_objects(client, "/api/v1/namespaces")
        },
    )


def list_objects(client: Client, path: str, *, optional: bool = False, **query: str) -> list[dict[str, Any]]:
    """Return all objects of a kind; with `optional` none if the cluster lacks the kind. Raises Refused."""
    try:
        items, _ = client.list(path, **query)
    except Refused as error:
        if optional and error.status == MISSING:
            return []
        raise
    return [json.loads(bytes(item)) for item in items]


def _there(client: Client, path: str) -> dict[str, Any] | None:
    try:
        return client.get(path)
    except Refused as error:
        if error.status == MISSING:
            return None
        raise
