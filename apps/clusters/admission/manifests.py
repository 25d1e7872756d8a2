"""Manifests of a cluster's two webhook configurations."""

import base64
from typing import Any

# Pods without any of these resources are not ours: match conditions admit them even while the webhooks are down.
WORDS = ("tencent.com/vcuda-", "aliyun.com/gpu-mem", "nvidia.com/gpu")
NAME = "gpucloud"
# Our own namespace, where a failing webhook would prevent our restart, and the cluster's own.
SPARED = ("kube-system", "kube-node-lease")


def configurations(
    *, ca_bundle: bytes, url: str | None = None, service: tuple[str, str] | None = None, conditions: bool = True
) -> list[dict[str, Any]]:
    """Return the mutating and the validating configuration, reached by URL or by (namespace, name) of a service.

    Without `conditions` (Kubernetes before 1.28) the API server sends every pod, so the failurePolicy is `Ignore`:
    nothing is refused while the webhooks are down.
    """
    return [
        _configuration("Mutating", ca_bundle, _client_config(url, service, "/admission/mutate"), conditions),
        _configuration("Validating", ca_bundle, _client_config(url, service, "/admission/validate"), conditions),
    ]


def _client_config(url: str | None, service: tuple[str, str] | None, path: str) -> dict[str, Any]:
    if service is None:
        return {"url": f"{(url or '').rstrip('/')}{path}"}
    return {"service": {"namespace": service[0], "name": service[1], "port": 443, "path": path}}


def _configuration(kind: str, ca_bundle: bytes, reached: dict[str, Any], conditions: bool) -> dict[str, Any]:
    client = reached | {"caBundle": base64.b64encode(ca_bundle).decode()}
    webhooks = [_webhook("pods", client, _pod_rules(kind), conditions=conditions)]
    if kind == "Validating":
        webhooks.append(_webhook("things", client, _object_rules(), conditions=False))
        # A quota's warning or a SharePod's early check is not worth a refusal while the webhooks are down.
        webhooks[-1]["failurePolicy"] = "Ignore"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": NAME}},
        "webhooks": webhooks,
    }


def _webhook(name: str, client: dict[str, Any], rules: list[dict[str, Any]], *, conditions: bool) -> dict[str, Any]:
    webhook = {
        "name": f"{name}.gpucloud.io",
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "timeoutSeconds": 5,
        "failurePolicy": "Fail" if conditions else "Ignore",
        "clientConfig": client,
        "rules": rules,
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(SPARED)},
            ]
        },
    }
    if conditions:
        webhook["matchConditions"] = [{"name": "asks-for-gpus", "expression": _asks_for_gpus()}]
    return webhook


def _pod_rules(kind: str) -> list[dict[str, Any]]:
    operations = ["CREATE"] if kind == "Mutating" else ["CREATE", "UPDATE"]
    return [{"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["pods"]}]


def _object_rules() -> list[dict[str, Any]]:
    both = ["CREATE", "UPDATE"]
    return [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": both, "resources": ["resourcequotas"]},
        {"apiGroups": ["kubeshare.nthu"], "apiVersions": ["v1"], "operations": both, "resources": ["sharepods"]},
    ]


def _asks_for_gpus() -> str:
    """Return a CEL expression: a container or init container names one of our resources, or a label is KubeShare's."""
    named = " || ".join(f"k.startsWith('{word}')" for word in WORDS)
    said = " || ".join(
        f"(has(c.resources) && has(c.resources.{kind}) && c.resources.{kind}.exists(k, {named}))"
        for kind in ("limits", "requests")
    )
    return (
        f"object.spec.containers.exists(c, {said}) || "
        f"(has(object.spec.initContainers) && object.spec.initContainers.exists(c, {said})) || "
        "(has(object.metadata.labels) && object.metadata.labels.exists(k, k.startsWith('sharedgpu/')))"
    )
