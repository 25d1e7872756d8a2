"""Mutating webhook: sets scheduler, defaults and library of new pods, and removes forged placement annotations.

The patch replaces whole values, so it is idempotent.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from apps.clusters.admission import rewriting
from apps.clusters.admission.policy import (
    Policy,
    decision_annotations,
    decision_labels,
    decision_variables,
    decisions,
)
from apps.clusters.admission.reviews import Review, Verdict
from apps.clusters.formats import FORMATS, Format, format_of, gpu_manager, pods, translation
from apps.clusters.formats.asks import WHOLE, Unreadable

logger = logging.getLogger(__name__)

DEFAULT_SCHEDULER = "default-scheduler"
# Schedulers of other formats, which no longer run once their pods are translated.
FORMER_SCHEDULERS = frozenset(name for format_ in FORMATS for name in format_.SCHEDULERS)
VOLUME = "gpucloud-library"
MOUNTED_AT = "/usr/local/gpucloud"
LIBRARY = f"{MOUNTED_AT}/libvcuda.so"
PRELOAD = "LD_PRELOAD"
CDI_KEY = "cdi.k8s.io/gpucloud"


def mutate(review: Review, policy: Policy) -> Verdict:
    """Return the changes to a new pod. The validating webhook refuses what cannot be parsed, with a reason."""
    if review.kind != "Pod" or review.operation != "CREATE":
        return Verdict()
    pod = dict(review.thing)
    warnings = []
    try:
        if (forged := sorted(decisions(pod))) and not policy.trusts(review.who):
            warnings.append(f"{forged[0]} assigns GPUs to the pod and was removed: only the scheduler may write it.")
            _remove_decisions(pod)
        used = format_of(pod)
        if used is not None:
            _fill(pod, used, policy)
    except Unreadable:
        return Verdict()
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        logger.info("%s in %s is not understood", review.kind, review.namespace, exc_info=True)
        return Verdict()
    return Verdict(warnings=warnings, patch=list(_operations(review.thing, pod)))


def _remove_decisions(pod: dict[str, Any]) -> None:
    """Remove what assigns GPUs to the pod: annotations, labels and variables."""
    labels, variables = decision_labels(pod), decision_variables(pod)
    if annotations := decision_annotations(pod):
        _annotate(pod, dict.fromkeys(annotations))
    if labels:
        kept = {key: value for key, value in pods.labels(pod).items() if key not in labels}
        pod["metadata"] = {**(pod.get("metadata") or {}), "labels": kept}
    if variables:
        spec = pod["spec"] = dict(pod.get("spec") or {})
        for kind in [kind for kind in ("initContainers", "containers") if spec.get(kind)]:
            spec[kind] = [_without_variables(container, variables) for container in spec[kind]]


def _without_variables(container: Mapping[str, Any], removed: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    name = str(container.get("name"))
    kept = [entry for entry in container.get("env") or [] if (name, str(entry.get("name"))) not in removed]
    return {**container, "env": kept} if "env" in container else dict(container)


def _fill(pod: dict[str, Any], used: Format, policy: Policy) -> None:
    spec = dict(pod.get("spec") or {})
    pod["spec"] = spec
    for key in [key for key in ("containers", "initContainers") if spec.get(key)]:
        spec[key] = [dict(container) for container in spec[key]]
    if used.NAME == gpu_manager.NAME:
        _default(pods.lasting_containers(pod), policy)
    elif used.NAME in policy.translated:
        containers, said = rewriting.rewrite(pod, used, policy)
        spec |= containers
        if said:
            _annotate(pod, said)
        if spec.get("schedulerName") in FORMER_SCHEDULERS:
            spec["schedulerName"] = policy.scheduler_name or DEFAULT_SCHEDULER
    if policy.scheduler_name is not None and spec.get("schedulerName") in (None, "", DEFAULT_SCHEDULER):
        spec["schedulerName"] = policy.scheduler_name
    if policy.library_directory is not None:
        _preload(pod, policy.library_directory)
    if policy.cdi_device is not None:
        _annotate(pod, {CDI_KEY: policy.cdi_device})


def _default(containers: Iterable[Any], policy: Policy) -> None:
    """Fill in the missing half of a share; whole GPUs need no defaults."""
    for container in containers:
        core, memory = (pods.amount(container, name) or 0 for name in gpu_manager.RESOURCES)
        amounts = {}
        if not core and memory and policy.default_core is not None:
            amounts[gpu_manager.CORE] = policy.default_core
        if 0 < core < WHOLE and not memory and policy.default_memory_mib is not None:
            amounts[gpu_manager.MEMORY] = -(-policy.default_memory_mib // gpu_manager.UNIT_MIB)
        if amounts:
            container["resources"] = translation.replace_resources(container, tuple(amounts), amounts)


def _preload(pod: dict[str, Any], directory: str) -> None:
    """Preload the library in every container that asks for GPUs, before its other preloaded libraries."""
    spec = pod["spec"]
    asking: list[Any] = [
        container
        for container in pods.lasting_containers(pod)
        if any(pods.amount(container, name) for name in gpu_manager.RESOURCES)
    ]
    for container in asking:
        mounts = [mount for mount in container.get("volumeMounts") or [] if mount.get("name") != VOLUME]
        container["volumeMounts"] = [*mounts, {"name": VOLUME, "mountPath": MOUNTED_AT, "readOnly": True}]
        before = pods.environment(container).get(PRELOAD, "")
        if LIBRARY not in before.split(":"):
            kept = [entry for entry in container.get("env") or [] if entry.get("name") != PRELOAD]
            value = f"{LIBRARY}:{before}" if before else LIBRARY
            container["env"] = [*kept, {"name": PRELOAD, "value": value}]
    if asking:
        volumes = [volume for volume in spec.get("volumes") or [] if volume.get("name") != VOLUME]
        spec["volumes"] = [*volumes, {"name": VOLUME, "hostPath": {"path": directory, "type": "Directory"}}]


def _annotate(pod: dict[str, Any], said: Mapping[str, str | None]) -> None:
    """Set annotations; None removes one."""
    merged = {**pods.annotations(pod), **said}
    kept = {key: value for key, value in merged.items() if value is not None}
    pod["metadata"] = {**(pod.get("metadata") or {}), "annotations": kept}


def _operations(before: pods.Pod, after: pods.Pod) -> Iterator[dict[str, Any]]:
    """Yield RFC 6902 operations that replace differing values below metadata, spec and each container."""
    yield from _diff("/metadata", before.get("metadata") or {}, after.get("metadata") or {})
    old, new = (pod.get("spec") or {} for pod in (before, after))
    yield from _diff("/spec", _without_containers(old), _without_containers(new))
    for place, (was, now) in enumerate(zip(pods.containers(before), pods.containers(after), strict=True)):
        yield from _diff(f"/spec/containers/{place}", was, now)


def _without_containers(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "containers"}


def _diff(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, value in new.items():
        if key not in old or old[key] != value:
            yield {"op": "add", "path": f"{path}/{key}", "value": value}
