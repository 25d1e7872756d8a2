"""Manifests of a cluster's two webhook configurations."""

import base64
from collections.abc import Iterable
from typing import Any

from apps.clusters.admission.policy import GUARDS
from apps.clusters.core.devices import DEVICE_CLASS, EXTENDED_RESOURCE, MIG_BEGINS, MIG_ENDS
from apps.clusters.formats import RESOURCES, mig_resources

# Pods with none of these words are not ours: match conditions admit them even while the webhooks are down.
ASKING = tuple(prefix for guard in GUARDS for prefix in guard.asking)
ANNOTATIONS = (*ASKING, *(key for guard in GUARDS for key in guard.annotations if not key.startswith(ASKING)))
LABELS = (*ASKING, *(key for guard in GUARDS for key in guard.labels if not key.startswith(ASKING)))
NAME = "gpucloud"
# The part of the path with the secret of the webhook of ResourceClaims: no cluster's name has a dot.
KEY = "key."
# Of Dynamic Resource Allocation.
RESOURCE = "resource.k8s.io"
# Label of a namespace whose pods see their node's GPUs: agents, exporters, device plugins.
SEES_GPUS = "gpucloud.io/gpus"
# Our own namespace, where a failing webhook would prevent our restart, and the cluster's own.
SPARED = ("kube-system", "kube-node-lease")


def configurations(
    *,
    ca_bundle: bytes,
    url: str | None = None,
    service: tuple[str, str] | None = None,
    conditions: bool = True,
    hide_gpus: bool = False,
    devices: bool = False,
    cluster: str = "",
    key: str = "",
) -> list[dict[str, Any]]:
    """Return the mutating and the validating configuration, reached by URL or by (namespace, name) of a service.

    Without `conditions` (Kubernetes before 1.28) the API server sends every pod, so the failurePolicy is `Ignore`:
    nothing is refused while the webhooks are down. `hide_gpus`: add a webhook for every pod that hides the node's GPUs
    from containers that ask for none. `devices`: add a webhook that charges ResourceClaims, in `cluster` or the first
    one; `key` is its secret.
    """
    made = [
        _configuration("Mutating", ca_bundle, _client_config(url, service, "/admission/mutate"), conditions),
        _configuration("Validating", ca_bundle, _client_config(url, service, "/admission/validate"), conditions),
    ]
    if hide_gpus:
        made[0]["webhooks"].append(_hiding(_client(ca_bundle, _client_config(url, service, "/admission/hide"))))
    if devices:
        path = "/".join(["/admission/devices", *filter(None, [cluster, key and f"{KEY}{key}"])])
        made[1]["webhooks"].append(_charging(_client(ca_bundle, _client_config(url, service, path))))
    return made


def _client_config(url: str | None, service: tuple[str, str] | None, path: str) -> dict[str, Any]:
    if service is None:
        return {"url": f"{(url or '').rstrip('/')}{path}"}
    return {"service": {"namespace": service[0], "name": service[1], "port": 443, "path": path}}


def _client(ca_bundle: bytes, reached: dict[str, Any]) -> dict[str, Any]:
    return reached | {"caBundle": base64.b64encode(ca_bundle).decode()}


def _hiding(client: dict[str, Any]) -> dict[str, Any]:
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]},
    ]
    webhook = _webhook("hidden-gpus", client, rules, conditions=False)
    # Every pod of the cluster passes here: none must wait for it. It comes after the rewriting of pods.
    webhook["failurePolicy"] = "Ignore"
    webhook["namespaceSelector"]["matchExpressions"].append(
        {"key": SEES_GPUS, "operator": "NotIn", "values": ["visible"]}
    )
    return webhook


def _charging(client: dict[str, Any]) -> dict[str, Any]:
    rules = [
        {
            "apiGroups": [RESOURCE],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["resourceclaims"],
        },
        {
            "apiGroups": [RESOURCE],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["resourceclaimtemplates"],
        },
    ]
    webhook = _webhook("devices", client, rules, conditions=False)
    # A claim is charged before it is stored, or not at all.
    webhook |= {
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        # Claims of one tenant are charged one after the other, and a burst has many.
        "timeoutSeconds": 15,
        "matchConditions": _charged_objects(),
    }
    return webhook


def _charged_objects() -> list[dict[str, str]]:
    """Return the conditions of objects that the webhook of ResourceClaims must see."""
    some = (
        f".exists(r, (has(r.exactly) && {_is_our_class('r.exactly')}) || "
        f"(has(r.firstAvailable) && r.firstAvailable.exists(s, {_is_our_class('s')})))"
    )
    spec = "(has(object.spec.spec) ? object.spec.spec : object.spec)"
    new, old = (
        f"(has({it}.metadata.annotations) ? {it}.metadata.annotations : {{}})" for it in ("object", "oldObject")
    )
    return [
        {
            "name": "asks-for-devices",
            "expression": f"has({spec}.devices) && has({spec}.devices.requests) && {spec}.devices.requests{some}",
        },
        # kube-scheduler and Kubernetes' controllers set and remove finalizers: they must not wait for us, and not
        # stop while we are away.
        {"name": "is-new-or-resized", "expression": f"request.operation == 'CREATE' || {new} != {old}"},
    ]


def _is_our_class(request: str) -> str:
    name = f"{request}.deviceClassName"
    return f"({name} == '{DEVICE_CLASS}' || ({name}.startsWith('{MIG_BEGINS}') && {name}.endsWith('{MIG_ENDS}')))"


def _configuration(kind: str, ca_bundle: bytes, reached: dict[str, Any], conditions: bool) -> dict[str, Any]:
    client = _client(ca_bundle, reached)
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
    """Return a CEL expression: the pod names one of our resources, or a label or annotation of it decides or asks.

    The pod before an update counts, too: a word that is taken away decides as well.
    """
    names = _quoted((*RESOURCES, EXTENDED_RESOURCE))
    begins = " || ".join(f"k.startsWith('{prefix}')" for prefix in (mig_resources.PREFIX, mig_resources.OWN_PREFIX))
    named = f"k in [{names}] || {begins}"
    asks = " || ".join(
        f"(has(c.resources) && has(c.resources.{kind}) && c.resources.{kind}.exists(k, {named}))"
        for kind in ("limits", "requests")
    )
    return (
        "[object, oldObject].exists(pod, pod != null && ("
        f"pod.spec.containers.exists(c, {asks}) || "
        f"(has(pod.spec.initContainers) && pod.spec.initContainers.exists(c, {asks})) || "
        f"{_has_key('labels', LABELS)} || {_has_key('annotations', ANNOTATIONS)}))"
    )


def _has_key(kind: str, prefixes: Iterable[str]) -> str:
    begins = f"pod.metadata.{kind}.exists(k, [{_quoted(prefixes)}].exists(prefix, k.startsWith(prefix)))"
    return f"(has(pod.metadata.{kind}) && {begins})"


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
