"""The CustomResourceDefinition of SharePods, as today's API servers want it; KubeShare's own has no schema."""

from typing import Any

GROUP = "kubeshare.nthu"
API_VERSION = f"{GROUP}/v1"
PATH = f"/apis/{API_VERSION}"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition() -> dict[str, Any]:
    """For `kubectl apply`. The spec is a pod's: the API server checks it when the pod is made."""
    columns = [
        ("GPU", "string", ".status.BoundDeviceID"),
        ("Node", "string", ".status.Node"),
        ("Phase", "string", ".status.Phase"),
        ("Message", "string", ".status.Message"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"sharepods.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "sharepods", "singular": "sharepod", "kind": "SharePod", "shortNames": ["shp"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in columns
                    ],
                    "schema": {
                        "openAPIV3Schema": {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}
                    },
                }
            ],
        },
    }
