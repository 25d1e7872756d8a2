"""CustomResourceDefinition of SharePods for current API servers; KubeShare's own has no schema."""

from typing import Any

GROUP = "kubeshare.nthu"
API_VERSION = f"{GROUP}/v1"
PATH = f"/apis/{API_VERSION}"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition() -> dict[str, Any]:
    """Return the definition for `kubectl apply`. The API server validates the spec when the pod is created."""
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
