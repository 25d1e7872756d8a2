"""Fields of pods that the watch keeps: those that readers use.

A pod is 5 to 15 KB of JSON, of which a few hundred bytes are used: names, words, resources, node, and whether it has
started. The rest is skipped while decoding, page by page. A reader of another field adds it here;
`tests/clusters/test_kept_pods.py` compares what the readers find in a whole and in a kept pod.
"""

from typing import Any, TypedDict

from apps.clusters.formats import FORMATS

# Written by `kubectl apply`, as large as the manifest.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
VARIABLES = frozenset(name for format_ in FORMATS for name in format_.GUARDED.environment)


class KeptMetadata(TypedDict, total=False):
    """Metadata of a pod."""

    name: str
    generateName: str
    namespace: str
    uid: str
    resourceVersion: str
    deletionTimestamp: str | None
    annotations: dict[str, str] | None
    labels: dict[str, str] | None


class KeptResources(TypedDict, total=False):
    """Resources of a container."""

    limits: dict[str, Any] | None
    requests: dict[str, Any] | None


class KeptContainer(TypedDict, total=False):
    """A container."""

    name: str
    restartPolicy: str | None
    resources: KeptResources | None
    env: list[dict[str, Any]] | None


class KeptSpec(TypedDict, total=False):
    """Desired state."""

    nodeName: str | None
    containers: list[KeptContainer] | None
    initContainers: list[KeptContainer] | None


class KeptCondition(TypedDict, total=False):
    """A condition."""

    type: str
    lastTransitionTime: Any


class KeptContainerStatus(TypedDict, total=False):
    """Observed state of a container."""

    name: str
    state: dict[str, Any] | None
    lastState: dict[str, Any] | None


class KeptStatus(TypedDict, total=False):
    """Observed state."""

    phase: str | None
    conditions: list[KeptCondition] | None
    containerStatuses: list[KeptContainerStatus] | None
    initContainerStatuses: list[KeptContainerStatus] | None


class KeptPod(TypedDict, total=False):
    """A pod."""

    metadata: KeptMetadata
    spec: KeptSpec | None
    status: KeptStatus | None


def trim(pod: Any) -> Any:
    """Drop from a decoded pod the words and variables that nobody reads, in place; return it."""
    annotations = pod.get("metadata", {}).get("annotations")
    if annotations:
        annotations.pop(LAST_APPLIED, None)
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        if kept := [entry for entry in container.pop("env", None) or () if entry.get("name") in VARIABLES]:
            container["env"] = kept
    status = pod.get("status") or {}
    if conditions := status.get("conditions"):
        status["conditions"] = [one for one in conditions if one.get("type") == "PodScheduled"]
    for key in ("containerStatuses", "initContainerStatuses"):
        for one in status.get(key) or ():
            for state in ("state", "lastState"):
                # Which of them there is says everything: waiting, running, terminated.
                if one.get(state):
                    one[state] = {kind: {} for kind in one[state]}
    return pod
