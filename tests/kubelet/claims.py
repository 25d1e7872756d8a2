"""ResourceClaims of a real node, and pods that use them."""

import json
from http import HTTPStatus
from typing import Any

from apps.clusters.dra import slices
from apps.clusters.kube.client import Refused
from tests.clusters.dra import things
from tests.kubelet.chain import NODE, Chain, container
from tests.kubelet.server_side import NAMESPACE

PATH = f"{things.API}/namespaces/{NAMESPACE}"


def left(chain: Chain) -> list[int]:
    """Return the percents that may be allocated in all of each GPU; none if the node has no ResourceSlice."""
    found = chain.client.find(f"{slices.PATH}/{slices.name_slice(NODE)}") or {}
    return [int(one["capacity"]["core"]["value"]) for one in found.get("spec", {}).get("devices", [])]


def create(chain: Chain, pod: str, *command: str, **source: str) -> None:
    """Create a pod that uses a ResourceClaim: `claim`, or one of its own from a `template`."""
    thing: dict[str, Any] = things.pod(pod, NAMESPACE, **source)
    thing["spec"]["containers"] = [container("main", *command, claims=[{"name": "gpu"}])]
    chain.create_pod(thing)


def delete_claims(chain: Chain) -> None:
    """Delete all ResourceClaims and templates of the namespace; their pods are gone."""
    for kind in ("resourceclaims", "resourceclaimtemplates"):
        for raw in chain.client.list(f"{PATH}/{kind}")[0]:
            try:
                chain.client.delete(f"{PATH}/{kind}/{json.loads(bytes(raw))['metadata']['name']}")
            except Refused as refused:
                # The garbage collector may delete a pod's own claim between the list and here.
                if refused.status != HTTPStatus.NOT_FOUND:
                    raise
